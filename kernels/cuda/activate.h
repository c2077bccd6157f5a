// activate: what an MLP does between its projections: out = f(gate) * up, or out = f(x) without a gate.
// core/activation.h says which f there are; silu_mul (activation.h) is the commonest, with a kernel of its own.
// Elementwise in fp32: each output depends on its own inputs alone.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/activation.h"

namespace llmb::cuda {

// T: float, __nv_bfloat16 or __half. Throws CudaError.
template <class T>
void activate(const ActivationSpec& spec,
              const T* x,  // [rows, 2 * intermediate] gate first, or [rows, intermediate]
              int64_t rows, int64_t intermediate,
              T* out,  // [rows, intermediate]
              cudaStream_t stream);

// activate_times: out = f(x) * y, of kinds that have no gate of their own. T as above. Throws CudaError.
template <class T>
void activate_times(Activation kind,
                    const T* x,                        // [rows, width]
                    const float* y, int64_t y_stride,  // [rows, y_stride]  the first `width` columns
                    int64_t rows, int64_t width,
                    T* out,  // [rows, width]
                    cudaStream_t stream);

}  // namespace llmb::cuda
