// update_states: what a token does to its sequence's states and reads of them. A head's state is a matrix S of key_dim by
// value_dim, in a state slot. With a decay e^g and a rate b of the token and head,
//
//     kGatedDelta:  S *= e^g;  u = b (v - Sᵀ k);  S += k uᵀ;  out = Sᵀ q
//     kMamba2:      S *= e^g;  u = b v;           S += k uᵀ;  out = Sᵀ q + skip v
//
// kGatedDelta (Yang et al. 2024, arXiv:2412.06464) gives k and q the length 1 and divides q by sqrt(key_dim) besides.
//
// As kernels/cpu/update_states.h has it: a token is computed from the state before its chunk (core/state_layout.h) and
// the keys and updates u of the chunk's tokens, so its bits depend on its sequence alone, not on how steps cut it. They
// are not the CPU's bits: here a sum over channels is eight chains, added by pairs.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/state_layout.h"
#include "kernels/cuda/state_entries.h"

namespace llmb::cuda {

inline constexpr int32_t kMaxStateKeyDim = 256;

// Vectors of a layer, each [num_value_heads].
struct StateWeights {
  const float* log_a = nullptr;    // g = -e^log_a * ln(1 + e^(input + dt_bias))
  const float* dt_bias = nullptr;
  const float* skip = nullptr;     // kMamba2
};

// T: float, __nv_bfloat16 or __half. Throws CudaError. REQUIRES: key_dim <= kMaxStateKeyDim; kGatedDelta or kMamba2
template <class T>
void update_states(const StateLayout& layout, int32_t state_layer,  // among the layers that have a state
                   const T* qkv,                                    // [num_tokens, conv_channels]  q, k and v of all heads
                   const float* gates,  // [num_tokens, gates_size]  as kernels/cpu/update_states.h says
                   const StateWeights& weights, const StateEntry* entries, int32_t num_entries,
                   int32_t num_tokens,  // of the step; only the time depends on it
                   T* out,              // [num_tokens, num_value_heads * value_dim]
                   cudaStream_t stream);

}  // namespace llmb::cuda
