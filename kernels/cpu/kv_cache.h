// One layer's keys and values in the paged KV pool, as the CPU kernels lay them out inside a block.
// A view: owns nothing, copied freely.
//
// 1. slot = block * block_size + offset; any block_size >= 1 is allowed (multiples of 16 are fastest).
// 2. Keys are stored with consecutive positions adjacent, so that the scores of a block's positions are SIMD lanes;
//    values with consecutive channels adjacent.
// 3. Slots that were never written may hold anything, NaN included: no kernel reads them into a result.
#pragma once

#include <cstdint>

namespace llmb::cpu {

struct KvCacheView {
  float* k = nullptr;  // [num_blocks, num_kv_heads, head_dim, block_size]
  float* v = nullptr;  // [num_blocks, num_kv_heads, block_size, head_dim]
  int32_t block_size = 16;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;

  // First float of (block, kv_head), in k as well as in v.
  int64_t block_offset(int64_t block, int64_t kv_head) const {
    return (block * num_kv_heads + kv_head) * head_dim * block_size;
  }
};

}  // namespace llmb::cpu
