// gated_delta: the gated delta rule (Yang et al. 2024, arXiv:2412.06464) over states that stand in state slots. A head's
// state is a matrix S of key_dim by value_dim. With k and q of length 1 (q divided by sqrt(key_dim) besides), a decay
// e^g and a rate b, a token does
//
//     S *= e^g;  u = b (v - Sᵀ k);  S += k uᵀ;  out = Sᵀ q
//
// It is computed from the state before the token's chunk (core/state_layout.h) and the keys and updates u of the chunk's
// tokens: with G the sum of g since the chunk began,
//
//     u = b (v - e^G Sᵀ k - sum over the tokens i before it in the chunk of e^(G - Gᵢ) (kᵢ · k) uᵢ)
//
// and likewise for out. Every sum is in order of channels, then of tokens, so a token's result depends on its sequence
// alone, not on how steps cut it.
#pragma once

#include "core/state_layout.h"
#include "kernels/cpu/causal_conv.h"

namespace llmb::cpu {

inline constexpr int32_t kMaxStateKeyDim = 256;

// REQUIRES: key_dim <= kMaxStateKeyDim
void gated_delta(const StateLayout& layout,
                 const float* qkv,      // [rows, conv_channels]  q, k and v of all heads
                 const float* gates,    // [rows, 2 * num_value_heads]  of each head the rate's logit, then the decay's input
                 const float* log_a,    // [num_value_heads]  g = -e^log_a * ln(1 + e^(input + dt_bias))
                 const float* dt_bias,  // [num_value_heads]
                 const StateEntries& entries,
                 float* out,  // [rows, num_value_heads * value_dim]
                 ThreadPool& pool);

}  // namespace llmb::cpu
