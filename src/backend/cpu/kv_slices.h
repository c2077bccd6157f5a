// A rank's part of the KV cache where ranks divide it by position (decode context parallel). A block of the pool, as
// plans name it, has a slice on each rank: kSliceTokens positions of each in turn. So block tables, copies, swaps and
// shared prefixes are those of one rank, and each rank does with its slices what the plan says of blocks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cpu/hidden_rows.h"
#include "backend/cpu/tree_batch.h"
#include "base/collectives.h"
#include "base/thread_pool.h"
#include "core/rank_part.h"
#include "core/resolve_step.h"
#include "core/step_plan.h"
#include "kernels/cpu/paged_attention.h"

namespace llmb {

// One thread drives it.
class KvSlices {
 public:
  // ranks: those that have the slices; outlives this. From first_row_slice on this rank's pool has room for a step's rows
  // that are not in their place (backend/cpu/tree_batch.h).
  KvSlices(Collectives& ranks, BlockId first_row_slice) : ranks_(ranks), first_row_slice_(first_row_slice) {}

  // REQUIRES: the plan's blocks have a slice for each rank
  void begin_step(const StepPlan& plan, const ResolvedStep& step);

  // [num_tokens]  of this rank's pool; −1: another rank has the position
  const int32_t* slots(int32_t layer_group) const { return slots_[static_cast<size_t>(layer_group)].data(); }
  // The same for keys and values: rows of trees that are not in their place are at hand on every rank, behind the pool.
  const int32_t* kv_slots(int32_t layer_group) const {
    return (kv_slots_.empty() ? slots_ : kv_slots_)[static_cast<size_t>(layer_group)].data();
  }
  TreeBatch::Tables tables(int32_t layer_group) const;  // of a step with trees
  // All rows of the step, with tables of slices. Valid until the next begin_step().
  cpu::AttentionBatch batch(int32_t layer_group) const;
  // Room for the queries of all rows of the step, in which ranks put each other's.
  float* queries(int64_t width);  // [num_tokens, width]
  // Hidden states of the step's rows, from slots of whole blocks, which are some rank's: all ranks call it, each for the
  // rows that it wants.
  void load_hidden(const HiddenRows& hidden,        // of this rank's slices
                   std::span<const int32_t> slots,  // [num_tokens]  of all rows; -1: zeros
                   const Range& wanted,
                   float* out,  // [wanted.count(), hidden.width()]
                   ThreadPool& pool);
  Collectives& ranks() { return ranks_; }

 private:
  void place_trees();
  int32_t rank_of(int32_t slot) const { return slot % plan_->block_size / kSliceTokens; }
  int32_t own_slot(int32_t slot) const {  // of this rank's pool
    return slot / plan_->block_size * kSliceTokens + slot % kSliceTokens;
  }

  Collectives& ranks_;
  const BlockId first_row_slice_;
  const StepPlan* plan_ = nullptr;
  const ResolvedStep* step_ = nullptr;
  std::vector<std::vector<int32_t>> slots_;        // [num_layer_groups][num_tokens]
  std::vector<std::vector<int32_t>> kv_slots_;     // the same; empty: slots_
  std::vector<std::vector<int32_t>> block_start_;  // [num_layer_groups][num_entries]
  std::vector<BlockId> block_ids_;                 // a plan's, each as often as it has slices
  std::vector<float> queries_;
};

}  // namespace llmb
