// Everything that one rank of a backend shares with the others.
#pragma once

#include <exception>
#include <memory>
#include <vector>

#include "base/collectives.h"
#include "base/shared_ranks.h"
#include "base/status.h"
#include "core/rank_part.h"

namespace llmb {

struct RankContext {
  RankPart part;
  std::shared_ptr<SharedRanks> ranks;   // where failures are told
  std::unique_ptr<Collectives> plans;   // of all: rank 0 tells the others what to run
  std::unique_ptr<Collectives> all;     // of all: what they agree on while they load, then what steps gave
  std::unique_ptr<Collectives> stages;  // of all: from stage to stage
  std::unique_ptr<Collectives> blocks;  // of all: what ranks read of blocks and states, between plans
  std::unique_ptr<Collectives> tensor;  // of those with parts of the same layers and rows: in the order of ops
  std::unique_ptr<Collectives> context;  // of those with other rows and the same part of the model: likewise
};

// Each rank's `own`, while all load. null: there is one.
template <typename T>
std::vector<T> of_all_ranks(const RankContext* context, T own) {
  if (context == nullptr) return {own};
  std::vector<T> all(static_cast<size_t>(context->all->size()));
  context->all->all_gather(&own, sizeof own, all.data());
  return all;
}

// A step threw it: a rank's error keeps its kind.
inline Status status_of_error(const std::exception& e) {
  const auto* const of_rank = dynamic_cast<const RankError*>(&e);
  return of_rank != nullptr ? of_rank->status() : internal_error(e.what());
}

// The channels of a context, of so many ranks as `grid` says.
std::vector<ChannelMembers> rank_channels(const RankPart& grid);
std::shared_ptr<RankContext> make_rank_context(std::shared_ptr<SharedRanks> ranks, const RankPart& part);

}  // namespace llmb
