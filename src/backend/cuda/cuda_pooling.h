// Steps that give vectors in place of tokens (LoadOptions::pooling), on a GPU: the ops that only they have, and the way
// of their vectors to the host.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "backend/cuda/step_stage.h"
#include "core/model_config.h"
#include "core/pooling.h"
#include "core/resolve_step.h"
#include "core/step_plan.h"
#include "kernels/cuda/memory.h"
#include "model/ops.h"

namespace llmb {

// Calls queue work and return. Driven by one thread. Everything throws cuda::CudaError.
class CudaPooling {
 public:
  // dtype: of activations.
  CudaPooling(const ModelConfig& config, const Pooling& pooling, DType dtype, const StepLimits& limits,
              cudaStream_t stream);

  // Ops::add_token_types, pool_rows and give_vectors, for the step.
  void add_token_types(const LinearWeight& table, const StepArrays& step, int64_t rows, Rows residual);
  void pool_rows(const StepArrays& step, Rows x, PoolingKind kind, int64_t num_samples, Rows out);
  void give_vectors(Rows x, int64_t num_samples);

  // Queues the copy of the vectors that the last step gave. At most limits.max_plans_in_flight are on their way: `flight`
  // counts modulo so many.
  void download(int64_t flight, int64_t num_samples);
  // Those of the step that was downloaded so, when it has run.
  void read(int64_t flight, int64_t num_samples, std::vector<float>* vectors) const;

  // Tokens in their place. Every row counts as finite; whoever takes a vector looks at it.
  static void stand_for_vectors(int64_t num_samples, SampledRows* rows);

 private:
  const bool has_second_texts_;
  const DType dtype_;
  const int64_t width_;  // of a vector
  const cudaStream_t stream_;
  const cuda::DeviceMemory types_;              // [max_num_tokens]
  const cuda::DeviceMemory begins_, ends_;      // [max_num_samples]  rows of texts
  const cuda::DeviceMemory vectors_;            // [max_num_samples, width_] fp32
  std::vector<cuda::PinnedMemory> host_;        // [max_plans_in_flight] of the same
};

}  // namespace llmb
