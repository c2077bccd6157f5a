// block_copy: KV blocks of all layers from one pool to another or within one: copy-on-write.
//
// 1. Copies run in no order: no block is written twice, and none is both read and written.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "core/step_plan.h"

namespace llmb::cpu {

// Where block b of plane p begins: data + p * plane_stride + b * block_stride. A layer is one plane: a block's keys,
// values and scales are one piece of memory (kernels/cpu/kv_cache.h).
struct BlockPool {
  uint8_t* data = nullptr;
  int64_t plane_stride = 0, block_stride = 0;  // bytes
};

void block_copy(const BlockPool& from, const BlockPool& to, int64_t num_planes, int64_t block_bytes,
                std::span<const BlockCopy> copies,  // of one layer group
                ThreadPool& pool);

}  // namespace llmb::cpu
