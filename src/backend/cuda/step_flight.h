// A plan on its way through the device, and where its results arrive.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/step_splits.h"
#include "core/step_plan.h"
#include "kernels/cuda/memory.h"

namespace llmb {

struct StepFlight {
  // Throws CudaError. sampled_bytes: CudaOps::sampled_bytes_with_top()
  StepFlight(int64_t sampled_bytes, int64_t max_num_tokens)
      : host(sampled_bytes), tokens(max_num_tokens * int64_t{sizeof(TokenId)}) {}

  // Until the step has ended; how long the device took, in ms.
  double await() const {
    sent.synchronize();
    float ms = 0;
    cuda::check(cudaEventElapsedTime(&ms, begin.get(), end.get()), "cudaEventElapsedTime");
    return ms;
  }

  const StepPlan* plan = nullptr;
  cuda::PinnedMemory host, tokens;  // sampled, and the step's own
  // Around what this GPU computes; waiting for another stage is not that.
  cuda::Event begin{cudaEventBlockingSync}, end{cudaEventBlockingSync}, sent{cudaEventBlockingSync};
  SubmittedWork work;
};

}  // namespace llmb
