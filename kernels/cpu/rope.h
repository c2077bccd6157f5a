// rope_and_kv_write: rotates q and k by their positions (RoPE, Su et al. 2021, in Hugging Face's rotate-half
// convention: channel i pairs with channel i + head_dim / 2) and stores the rotated k, and v, into their KV slots.
// The k part of qkv is left as it was; q is rotated in place.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/cpu/kv_cache.h"

namespace llmb::cpu {

// REQUIRES: head_dim even and equal to kv.head_dim, num_kv_heads equal to kv.num_kv_heads; slots differ.
void rope_and_kv_write(float* qkv,                // [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]
                       const int32_t* positions,  // [num_tokens]
                       const int32_t* slots,      // [num_tokens]
                       int64_t num_tokens, int32_t num_heads, int32_t num_kv_heads, int32_t head_dim,
                       const float* cos,  // [max_position, head_dim / 2]
                       const float* sin,  // [max_position, head_dim / 2]
                       const KvCacheView& kv, ThreadPool& pool);

}  // namespace llmb::cpu
