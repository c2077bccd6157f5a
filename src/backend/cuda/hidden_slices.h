// Hidden states for a layer behind the last one, where GPUs divide keys and values by position: they lie in slices as well
// (gathered_slices.h). Such a layer takes the one before each row. Most of these are the step's own rows; of each entry
// one may be of before the step, and ranks give each other those alone.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/device_collectives.h"
#include "core/rank_part.h"
#include "core/step_plan.h"
#include "kernels/cuda/hidden_rows.h"
#include "kernels/cuda/memory.h"

namespace llmb {

// Calls queue work and return. Driven by one thread. Throws CudaError.
class HiddenSlices {
 public:
  struct Limits {
    int64_t max_num_tokens = 0, max_num_seqs = 0;
    int64_t width = 0, number_bytes = 2;  // of a hidden state, as the pool has it
  };
  // `ranks`: those that have the slices; outlives this
  HiddenSlices(DeviceCollectives& ranks, const Limits& limits);

  // Room for those of the step's rows, which previous() looks at.
  template <class Stored>
  Stored* own() const {  // [num_tokens, width]
    return own_.data<Stored>();
  }
  // The one before each row. `step`: all rows of the plan's step; the pool has what it stores. Every rank calls it.
  template <class Stored>
  void previous(const StepPlan& plan, const cuda::SlicedRows& step, const Range& wanted, const Stored* pool,
                float* out,  // [wanted.count(), width]
                cudaStream_t stream) const;

 private:
  DeviceCollectives& ranks_;
  const Limits limits_;
  const cuda::DeviceMemory own_, given_;  // given_: [ranks, num_entries, width]
};

}  // namespace llmb
