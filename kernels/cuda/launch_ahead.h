// Whether a kernel may start before the one ahead of it on a stream has ended. Thread-safe.
#pragma once

#include <cuda_runtime.h>

#include <mutex>
#include <unordered_map>

#include "kernels/cuda/error.h"

namespace llmb::cuda {

// True where the code that this device runs of it is of sm_90 or later, where ptx::wait_for_previous_grid() waits. The
// answer is kept. Throws CudaError.
inline bool can_launch_ahead(const void* kernel) {
  static std::mutex mutex;
  static std::unordered_map<const void*, bool> answers;
  const std::lock_guard lock(mutex);
  const auto found = answers.find(kernel);
  if (found != answers.end()) return found->second;
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
  const bool answer = attributes.ptxVersion >= 90 && attributes.binaryVersion >= 90;
  return answers.emplace(kernel, answer).first->second;
}

}  // namespace llmb::cuda
