// Asks for the keys and values of the segment that a thread works on next, a few cache lines in each step of what it
// computes now, so that memory is never idle and nothing waits for it. Private to kernels/cpu.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/types.h"
#include "hwy/base.h"
#include "kernels/cpu/paged_attention_segment.h"

namespace llmb::cpu {

// Where there is nothing to fetch, or no need.
struct NoFetch {
  void pace(int64_t) {}
  HWY_INLINE void step() {}
};

class SegmentFetch {
 public:
  SegmentFetch(const AttentionCall& c, const NextPositions& next) {
    // A larger block reaches beyond the segment; its positions are not together.
    if (next.item == nullptr || c.kv.block_size > kSegment) return;
    kv_ = &c.kv;
    kv_head_ = next.item->kv_head;
    const BlockId* blocks = c.batch.block_ids + c.batch.block_start[next.item->seq];
    block_ = blocks + next.begin / c.kv.block_size;
    end_block_ = blocks + ceil_div(next.end, c.kv.block_size);
  }

  // Spreads what is left over as many steps.
  void pace(int64_t steps) {
    if (kv_ == nullptr) return;
    const int64_t bytes = (end_block_ - block_) * kv_->head_bytes() + (end_ - at_);
    const int64_t lines = ceil_div(ceil_div(bytes, kLineBytes), std::max<int64_t>(1, steps));
    step_bytes_ = std::min<int64_t>(8, lines) * kLineBytes;
  }

  // Inline always: a call would cost the tile around it all of its registers.
  HWY_INLINE void step() {
    if (at_ >= end_) {
      if (block_ == end_block_) return;
      at_ = kv_->keys(*block_++, kv_head_);
      end_ = at_ + kv_->head_bytes();
    }
    for (const uint8_t* const to = std::min(at_ + step_bytes_, end_); at_ < to; at_ += kLineBytes)
      __builtin_prefetch(at_, /*write=*/0, /*locality: the second-level cache, which holds a segment*/ 2);
  }

 private:
  static constexpr int64_t kLineBytes = 64;

  const KvCacheView* kv_ = nullptr;
  int64_t kv_head_ = 0;
  const BlockId *block_ = nullptr, *end_block_ = nullptr;  // still to come
  const uint8_t *at_ = nullptr, *end_ = nullptr;           // in the block at hand
  int64_t step_bytes_ = 0;
};

}  // namespace llmb::cpu
