// add: residual += factor * delta; out = residual. scale: x = factor * x. softcap: x = cap * tanh(x / cap) (Gemma 2).
// clamp: x is brought into [-limit, limit]. Elementwise in fp32, rounded once; NaN stays NaN.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace llmb::cuda {

// T, everywhere: float, __nv_bfloat16 or __half. Throws CudaError.
template <class T>
void add(float* residual,  // [size]  in and out
         const T* delta,   // [size]  or nullptr: nothing is added
         float factor, int64_t size,
         T* out,  // [size]  or nullptr: not wanted
         cudaStream_t stream);

void scale(float* x,  // [size]  in and out
           float factor, int64_t size, cudaStream_t stream);

void softcap(float* x,  // [size]  in and out
             float cap, int64_t size, cudaStream_t stream);

template <class T>
void clamp(T* x,  // [size]  in and out
           float limit, int64_t size, cudaStream_t stream);

}  // namespace llmb::cuda
