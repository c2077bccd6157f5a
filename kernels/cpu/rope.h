// rope_and_kv_write: rotates q and k by their positions (RoPE, Su et al. 2021, in Hugging Face's rotate-half
// convention: channel i pairs with channel i + rotary_dim / 2) and stores the rotated k, and v, into their KV slots.
// The k part of qkv is left as it was; q is rotated in place.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/cpu/kv_cache.h"

namespace llmb::cpu {

// With kv.latent_dim there are no values.
// Only the first rotary_dim channels of a head are rotated; 0: none, and cos and sin are not read. REQUIRES: rotary_dim
// even, at most head_dim; head_dim equal to kv.head_dim, num_kv_heads to kv.num_kv_heads; slots differ.
void rope_and_kv_write(float* qkv,                // [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim], or no v
                       const int32_t* positions,  // [num_tokens]
                       const int32_t* slots,      // [num_tokens]  < 0: its k and v are kept elsewhere
                       int64_t num_tokens, int32_t num_heads, int32_t num_kv_heads, int32_t head_dim,
                       int32_t rotary_dim,
                       const float* cos,  // [max_position, rotary_dim / 2]
                       const float* sin,  // [max_position, rotary_dim / 2]
                       const KvCacheView& kv, ThreadPool& pool);

}  // namespace llmb::cpu
