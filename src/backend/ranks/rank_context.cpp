#include "backend/ranks/rank_context.h"

#include <numeric>
#include <utility>

namespace llmb {

namespace {

enum : size_t { kPlans, kAll, kStages, kFirstTensor };

ChannelMembers neighbours(int32_t first, int32_t count) {
  ChannelMembers members;
  members.ranks.resize(static_cast<size_t>(count));
  std::iota(members.ranks.begin(), members.ranks.end(), first);
  return members;
}

}  // namespace

std::vector<ChannelMembers> rank_channels(const RankPart& grid) {
  const ChannelMembers all = neighbours(0, grid.num_ranks());
  std::vector<ChannelMembers> channels = {all, all, all};
  channels[kPlans].may_be_idle = true;
  for (int32_t stage = 0; stage < grid.num_stages; ++stage)
    channels.push_back(neighbours(stage * grid.tensor_size, grid.tensor_size));
  return channels;
}

std::shared_ptr<RankContext> make_rank_context(std::shared_ptr<SharedRanks> ranks, const RankPart& part) {
  auto context = std::make_shared<RankContext>();
  context->part = part;
  context->plans = SharedRanks::join(ranks, kPlans, part.rank);
  context->all = SharedRanks::join(ranks, kAll, part.rank);
  context->stages = SharedRanks::join(ranks, kStages, part.rank);
  context->tensor = SharedRanks::join(ranks, kFirstTensor + static_cast<size_t>(part.stage()), part.rank);
  context->ranks = std::move(ranks);
  return context;
}

}  // namespace llmb
