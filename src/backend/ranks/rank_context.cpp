#include "backend/ranks/rank_context.h"

#include <utility>

namespace llmb {

namespace {

enum : size_t { kPlans, kAll, kStages, kBlocks, kFirstTensor };

// Every `step`th rank from the first one on.
ChannelMembers every(int32_t step, int32_t first, int32_t count) {
  ChannelMembers members;
  for (int32_t i = 0; i < count; ++i) members.ranks.push_back(first + i * step);
  return members;
}

}  // namespace

std::vector<ChannelMembers> rank_channels(const RankPart& grid) {
  const ChannelMembers all = every(1, 0, grid.num_ranks());
  std::vector<ChannelMembers> channels = {all, all, all, all};
  channels[kPlans].may_be_idle = true;
  for (int32_t first = 0; first < grid.num_ranks(); first += grid.tensor_size)
    channels.push_back(every(1, first, grid.tensor_size));
  for (int32_t stage = 0; stage < grid.num_stages; ++stage)
    for (int32_t i = 0; i < grid.tensor_size; ++i)
      channels.push_back(every(grid.tensor_size, stage * grid.stage_size() + i, grid.context_size));
  return channels;
}

std::shared_ptr<RankContext> make_rank_context(std::shared_ptr<SharedRanks> ranks, const RankPart& part) {
  auto context = std::make_shared<RankContext>();
  context->part = part;
  context->plans = SharedRanks::join(ranks, kPlans, part.rank);
  context->all = SharedRanks::join(ranks, kAll, part.rank);
  context->stages = SharedRanks::join(ranks, kStages, part.rank);
  context->blocks = SharedRanks::join(ranks, kBlocks, part.rank);
  const int32_t num_tensor = part.num_stages * part.context_size;
  const int32_t same_part = part.stage() * part.tensor_size + part.tensor_rank();
  context->tensor = SharedRanks::join(ranks, kFirstTensor + static_cast<size_t>(part.rank / part.tensor_size), part.rank);
  context->context = SharedRanks::join(ranks, kFirstTensor + static_cast<size_t>(num_tensor + same_part), part.rank);
  context->ranks = std::move(ranks);
  return context;
}

}  // namespace llmb
