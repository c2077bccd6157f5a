// update_states: what a token does to its sequence's states and reads of them. A head's state is a matrix S of key_dim by
// value_dim, in a state slot. With a decay e^g and a rate b of the token and head,
//
//     kGatedDelta:  S *= e^g;  u = b (v - Sᵀ k);  S += k uᵀ;  out = Sᵀ q
//     kMamba2:      S *= e^g;  u = b v;           S += k uᵀ;  out = Sᵀ q + skip v
//
// kGatedDelta (Yang et al. 2024, arXiv:2412.06464) gives k and q the length 1 and divides q by sqrt(key_dim) besides.
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

// Vectors of a layer, each [num_value_heads].
struct StateWeights {
  const float* log_a;    // g = -e^log_a * ln(1 + e^(input + dt_bias))
  const float* dt_bias;
  const float* skip;     // kMamba2
};

// REQUIRES: key_dim <= kMaxStateKeyDim; kGatedDelta or kMamba2
void update_states(const StateLayout& layout,
                   const float* qkv,    // [rows, conv_channels]  q, k and v of all heads
                   const float* gates,  // [rows, gates_size]  kGatedDelta: the rates' logits, then the decays' inputs;
                                        // kMamba2: inputs, whose ln(1 + e^(input + dt_bias)) is the rate as well
                   const StateWeights& weights, const StateEntries& entries,
                   float* out,  // [rows, num_value_heads * value_dim]
                   ThreadPool& pool);

}  // namespace llmb::cpu
