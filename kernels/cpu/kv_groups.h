// close_kv_groups: stores groups of an int4 KV cache, keys by channel and values by token (KIVI: Liu et al. 2024,
// arXiv:2402.02750), from the bfloat16 numbers that they have while they are open. The layout is kv_cache.h's.
//
// For 32 numbers: zero = the least, scale = (the greatest - zero) / 15, rounded up to bf16, code = (x - zero) / scale rounded
// to the nearest, halves up. All codes are 0 where all numbers are equal; scale and zero are NaN where one is not finite, or
// the scale would not be.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "kernels/cpu/kv_cache.h"

namespace llmb::cpu {

struct ClosingGroup {
  int64_t from = 0;  // its block of the open view
  int64_t slot = 0;  // of its first position in the cache, a multiple of kKvGroup
};

// REQUIRES: open is bfloat16 in blocks of kKvGroup, kv int4, with the same heads; slots differ.
void close_kv_groups(const KvCacheView& open, const KvCacheView& kv, std::span<const ClosingGroup> groups,
                     ThreadPool& pool);

}  // namespace llmb::cpu
