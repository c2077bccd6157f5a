// The rows of a step that one of several GPUs with the same part of the model computes (context parallel), and the calls
// in which these meet: each gives the others the keys and values of its rows, layer by layer, and attends to all from
// its own; then all have what is sampled. Deterministic: a row's bits do not depend on the other rows of a call, so no
// byte depends on how rows are shared out.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/device_collectives.h"
#include "backend/cuda/step_stage.h"
#include "core/model_config.h"
#include "core/row_parts.h"
#include "core/step_plan.h"
#include "kernels/cuda/memory.h"
#include "model/ops.h"

namespace llmb {

// Calls queue work and return. Driven by one thread. Throws CudaError.
class ContextRows {
 public:
  struct Limits {
    int64_t max_num_tokens = 0, max_num_samples = 0;
    int64_t number_bytes = 2;  // of activations
  };
  // `whole`: the model; `own`: this rank's part of it
  ContextRows(std::unique_ptr<DeviceCollectives> ranks, const ModelConfig& whole, const ModelConfig& own,
              const Limits& limits, cudaStream_t stream);

  // Bounds of the ranks' rows, of which this one's begin with bounds[rank()]; empty: all compute all, as they are few or
  // the plan is not to be divided. Every rank finds the same.
  std::vector<int64_t> divide(const StepPlan& plan) const;
  int rank() const { return ranks_->rank(); }

  // Columns of a layer's qkv in front of those that ranks give each other.
  static int64_t query_columns(const ModelConfig& own, int32_t layer);

  // Columns from first_column on of all ranks' rows. Valid until the next call.
  Rows share_columns(Rows own_rows,  // of this rank
                     int64_t first_column, std::span<const int64_t> row_bounds);
  // Room for what states give of all rows, as wide as `rows`; then this rank's of these.
  Rows mixed_rows(Rows rows) const { return {mixed_.data(), rows.dtype, rows.width}; }
  void take_own(Rows all_rows, std::span<const int64_t> row_bounds, Rows out);
  // out[i] = the row of the step's sample row i, whoever has it
  void gather_sampled(Rows own_rows,  // of this rank
                      const StepArrays& step, Rows out);
  // All have what the first rank has: where a run is not deterministic, ranks may sample another token of the same row.
  void agree(void* data, int64_t bytes) { ranks_->broadcast(data, bytes, 0, stream_); }

  DeviceCollectives& ranks() { return *ranks_; }

 private:
  const std::unique_ptr<DeviceCollectives> ranks_;
  const RowCost cost_;
  const cudaStream_t stream_;
  const cuda::DeviceMemory all_;    // rows of all ranks
  const cuda::DeviceMemory mixed_;  // [max_num_tokens, state.values_size()], or empty
};

}  // namespace llmb
