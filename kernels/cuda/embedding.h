// embedding: residual[i] = table[tokens[i]], widened to fp32. A token that the host does not know yet, since the step
// before it is still being computed, is taken from that step's sampled tokens.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/types.h"

namespace llmb::cuda {

// T: float, __nv_bfloat16 or __half. REQUIRES: tokens below vocab_size; negative ones name entries of prev_sampled,
// which may be nullptr where there are none. Throws CudaError.
template <class T>
void embedding(const T* table,               // [vocab_size, hidden]
               const TokenId* tokens,        // [rows]  t < 0: prev_sampled[-t - 1]
               const TokenId* prev_sampled,  // tokens sampled by the step before
               int64_t rows, int64_t hidden,
               float* residual,  // [rows, hidden]
               cudaStream_t stream);

}  // namespace llmb::cuda
