// Attention of decode steps over keys and values that GPUs divide by position, without giving each other any of these:
// each attends from all rows to its own slices, and ranks exchange a state of each row and head (kernels/cuda/
// merge_states.h), which all merge in the order of ranks. Results round otherwise than one GPU's, so it is not for
// deterministic runs; they are equal on all ranks.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "backend/cuda/attention_kinds.h"
#include "backend/cuda/device_collectives.h"
#include "core/step_plan.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/merge_states.h"
#include "kernels/cuda/paged_attention.h"

namespace llmb {

// Calls queue work and return. Driven by one thread. Throws CudaError.
class SliceStates {
 public:
  struct Limits {
    int32_t max_num_seqs = 0, num_layer_groups = 1, max_plans_in_flight = 1;
    int64_t max_step_blocks = 0;  // of a layer group's tables
  };
  // `kinds` of attention, over dense pools; `ranks`: those that have the slices; outlives this
  SliceStates(DeviceCollectives& ranks, std::vector<AttentionKind> kinds, const Limits& limits, cudaStream_t stream);

  // Whether attention of the step may go so: each sequence has one row, whose position is known. The other calls are
  // about it then.
  bool begin_step(const StepPlan& plan);
  // For attention of the kind, whose items leave partial results of this rank's slices and nothing else.
  cuda::AttentionWork work(size_t kind, int32_t num_blocks) const;
  const BlockId* block_ids(int32_t group) const;
  // out: of all rows, from the partial results that attention of the kind has left
  template <class T>
  void merge(size_t kind, const float* sinks, T* out);

 private:
  struct List {  // a kind's, in host_ and memory_
    int64_t items = 0, cta_start = 0, rows = 0;  // bytes from the begin
    bool has_wgmma = false;
  };
  int64_t list_bytes(const AttentionKind& kind) const;
  void place_tables(const StepPlan& plan);
  void make_list(size_t kind, uint8_t* host, int64_t* end);

  DeviceCollectives& ranks_;
  const std::vector<AttentionKind> kinds_;
  const Limits limits_;
  const cudaStream_t stream_;
  cuda::DeviceMemory memory_, partials_, stats_, counters_, states_;
  std::vector<cuda::PinnedMemory> host_;  // [max_plans_in_flight]  in turn
  size_t turn_ = 0;
  // The step's.
  int32_t num_rows_ = 0;
  int64_t ids_ = 0;  // bytes from memory_'s begin
  std::vector<BlockId> joined_ids_;  // of a block in all groups together
  std::vector<int32_t> query_start_, context_len_, block_start_;
  std::vector<uint8_t> sees_nothing_;
  std::vector<List> lists_;
  std::vector<cuda::RowPieces> rows_;
  cuda::AttentionSchedule schedule_;
};

}  // namespace llmb
