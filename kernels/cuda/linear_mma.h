// linear_mma: out = x · weightᵀ + bias by kernels of our own whose results do not depend on the batch: each output
// element is one chain of fp32 sums over k = 0 … in_features - 1 in steps of 16, the bias added last, in every tiling.
// For batches of few rows, which read a weight once, they are also an alternative to cuBLASLt.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/linear_view.h"

namespace llmb::cuda {

// T: float (no tensor cores), __nv_bfloat16 or __half; Out: T or float. Any sizes; tensor cores are used where
// in_features is a multiple of 8, which decides by itself what bits come out. x, out and the weight are 16-byte
// aligned. Throws CudaError.
template <class T, class Out>
void linear_mma(const LinearView& weight,
                const T* x,  // [rows, in_features]
                int64_t rows,
                Out* out,  // [rows, out_features]
                cudaStream_t stream);

}  // namespace llmb::cuda
