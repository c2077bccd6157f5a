// Errors of the CUDA runtime and of cuBLASLt as one exception. It does not leave src/backend/cuda.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

namespace llmb::cuda {

class CudaError : public std::runtime_error {
 public:
  CudaError(cudaError_t code, const std::string& what)
      : std::runtime_error(what + ": " + cudaGetErrorName(code) + " (" + cudaGetErrorString(code) + ")"), code_(code) {}
  cudaError_t code() const { return code_; }

 private:
  cudaError_t code_;
};

// `what` names the call, for the message.
inline void check(cudaError_t code, const char* what) {
  if (code != cudaSuccess) throw CudaError(code, what);
}

}  // namespace llmb::cuda
