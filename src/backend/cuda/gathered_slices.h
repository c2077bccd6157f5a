// Keys and values that GPUs divide by position (decode context parallel). A block of the pool, as plans name it, has a
// slice of kSliceTokens positions on each rank, so block tables, copies, swaps and shared prefixes are those of one GPU,
// and each rank does with its slices what the plan says of blocks. In each layer, ranks give each other the slices that
// the step's tables name, each once and from the window on, and put them into memory for one layer; attention goes over
// these as over a pool with blocks of kSliceTokens. Some decode steps go without (slice_states.h). Of hidden states only
// those that a layer takes are given, one for each entry (hidden_slices.h).
//
// 1. A row goes over its positions in one GPU's order: no byte depends on how many ranks there are.
// 2. Slices without a position from before the step are not given: each rank has the keys and values of all new rows.
//    Only layers that attend to an earlier one's, which is no longer in that memory, get those of new rows as well.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cuda/device_collectives.h"
#include "core/rank_part.h"
#include "core/step_plan.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/own_slots.h"

namespace llmb {

// Calls queue work and return. Driven by one thread. Throws CudaError.
class GatheredSlices {
 public:
  struct Limits {
    std::vector<int32_t> windows;  // LayerGroups::windows
    int32_t max_num_tokens = 0;
    int64_t max_step_blocks = 0;  // of a layer group's tables
    int32_t max_plans_in_flight = 1;
    int64_t slice_bytes = 0;  // of the layer with the most, keys, values and scales together
  };
  // `ranks`: those that have the slices; outlives this
  GatheredSlices(DeviceCollectives& ranks, Limits limits, cudaStream_t stream);

  // Memory for one layer that a block of the pool takes, at most.
  int64_t block_bytes() const { return ranks_.size() * limits_.slice_bytes; }
  void set_pool(int64_t num_blocks);

  // The plan with tables of gathered slices, in blocks of kSliceTokens; copies and swaps stay those of the pool. It is
  // the step's that following calls are about, and valid until the next one. REQUIRES: no plan of heads, which names no
  // block
  const StepPlan& begin_step(const StepPlan& plan);
  // Once slots are those of the plan that begin_step() gave.
  void place_rows(const int32_t* slots,  // [num_layer_groups, num_tokens]
                  int32_t num_tokens);
  // [num_tokens]  of this rank's pool; −1: another rank has the position
  const int32_t* own_slots(int32_t group) const {
    return own_slots_.data<const int32_t>() + int64_t{group} * num_tokens_;
  }
  const StepPlan& plan() const { return sliced_; }  // begin_step()'s
  // On the device: the group's blocks, and those of all groups.
  const cuda::SliceGroup* group_on_device(int32_t group) const {
    return tables_.data<const cuda::SliceGroup>() + group;
  }
  const cuda::BlockPair* blocks_on_device() const {
    return reinterpret_cast<const cuda::BlockPair*>(group_on_device(static_cast<int32_t>(groups_.size())));
  }
  // Slices of all ranks that the group's tables name.
  int64_t num_slices(int32_t group) const { return int64_t{ranks_.size()} * groups_[static_cast<size_t>(group)].count; }

  // A layer's arrays in this rank's pool, as long as each other: keys and values, or their scales.
  struct Arrays {
    uint8_t* pool = nullptr;       // block 0's slice in the first of them
    int64_t num_arrays = 0;
    int64_t array_stride = 0, block_stride = 0, slice_bytes = 0;  // in bytes
  };
  // Into `memory()`: the arrays one behind the other, [num_slices(group), slice_bytes] each. has_new_rows: the pools have
  // the step's rows; else what these have is written there behind this call.
  void gather(int32_t group, std::span<const Arrays> arrays, bool has_new_rows);
  uint8_t* memory() const { return memory_.data<uint8_t>(); }

 private:
  struct NamedBlock {
    BlockId block = 0;
    bool has_stored = false;  // positions of before the step
  };
  void find_blocks(const StepPlan& plan, int32_t group);
  void name_slices(const StepPlan& plan, int32_t group);
  // body(entry, index in its table, block) for each that the group's rows may see.
  template <typename Body>
  void for_seen_blocks(const StepPlan& plan, int32_t group, const Body& body) const;
  void upload();

  DeviceCollectives& ranks_;
  const Limits limits_;
  const cudaStream_t stream_;
  int64_t num_blocks_ = 0;
  cuda::DeviceMemory memory_, own_slots_;
  cuda::DeviceMemory tables_;               // [num_layer_groups] SliceGroup, then pairs
  std::vector<cuda::PinnedMemory> host_;    // [max_plans_in_flight]  the same, in turn
  size_t turn_ = 0;
  // The step's.
  StepPlan sliced_;
  std::vector<cuda::SliceGroup> groups_;
  std::vector<int32_t> num_stored_;    // [num_layer_groups]  of a group's blocks, the first ones, with such positions
  std::vector<cuda::BlockPair> pairs_;  // from a block of the pool to its place in its group
  std::vector<NamedBlock> named_;
  std::vector<int32_t> place_of_;  // [num_blocks]  in named_, then in its group; -1: not named
  int32_t num_tokens_ = 0;
};

}  // namespace llmb
