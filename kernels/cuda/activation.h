// silu_mul: out = silu(gate) * up, with silu(x) = x / (1 + exp(-x)) (SwiGLU, Shazeer 2020).
// Elementwise in fp32: each output depends on its own two inputs alone.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace llmb::cuda {

// T: float, __nv_bfloat16 or __half. Throws CudaError.
template <class T>
void silu_mul(const T* gate_up,  // [rows, 2 * intermediate]  gate first
              int64_t rows, int64_t intermediate,
              T* out,  // [rows, intermediate]
              cudaStream_t stream);

}  // namespace llmb::cuda
