// add_rms_norm: residual += delta; out = residual / rms(residual) * weight (RMSNorm, Zhang and Sennrich 2019).
// Each row's arithmetic depends on that row, on `hidden` and on whether all arrays are 16-byte aligned, not on how many
// rows there are.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace llmb::cuda {

// T: float, __nv_bfloat16 or __half. Any hidden >= 1. Throws CudaError.
template <class T>
void add_rms_norm(float* residual,      // [rows, hidden]  in and out
                  const T* delta,       // [rows, hidden]  or nullptr: nothing is added
                  const float* weight,  // [hidden]
                  float eps, int64_t rows, int64_t hidden,
                  T* out,  // [rows, hidden]
                  cudaStream_t stream);

}  // namespace llmb::cuda
