// Asks for the keys and values that a thread works on next, a few cache lines in each step of what it computes now, so
// that memory is never idle and nothing waits for it. Private to kernels/cpu.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

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
  // Positions [begin, end) of what an item reads.
  struct Range {
    const AttentionItem* item = nullptr;  // null: nothing
    int64_t begin = 0, end = 0;
  };

  // `then` comes after `next`. An even pace needs more than a segment to come: the last of a sequence can be a few
  // positions long, and gives no time to fetch a whole one.
  SegmentFetch(const AttentionCall& c, const Range& next, const Range& then) {
    // A larger block reaches beyond the segment; its positions are not together.
    if (c.kv.block_size > kSegment) return;
    kv_ = &c.kv;
    then_ = blocks(c, then);
    now_ = blocks(c, next);
    if (now_.at == now_.end) now_ = std::exchange(then_, Blocks());
  }

  // Spreads what is left over as many steps.
  void pace(int64_t steps) {
    if (kv_ == nullptr) return;
    const int64_t num_blocks = (now_.end - now_.at) + (then_.end - then_.at);
    const int64_t bytes = num_blocks * kv_->head_bytes() + (end_ - at_);
    const int64_t lines = ceil_div(ceil_div(bytes, kLineBytes), std::max<int64_t>(1, steps));
    step_bytes_ = std::min<int64_t>(8, lines) * kLineBytes;
  }

  // Inline always: a call would cost the tile around it all of its registers.
  HWY_INLINE void step() {
    if (at_ >= end_) {
      if (now_.at == now_.end) return;
      at_ = kv_->keys(*now_.at++, now_.kv_head);
      end_ = at_ + kv_->head_bytes();
      if (now_.at == now_.end) now_ = std::exchange(then_, Blocks());
    }
    for (const uint8_t* const to = std::min(at_ + step_bytes_, end_); at_ < to; at_ += kLineBytes)
      __builtin_prefetch(at_, /*write=*/0, /*locality: the second-level cache, which holds a segment*/ 2);
  }

 private:
  static constexpr int64_t kLineBytes = 64;

  struct Blocks {
    const BlockId *at = nullptr, *end = nullptr;
    int64_t kv_head = 0;
  };

  static Blocks blocks(const AttentionCall& c, const Range& range) {
    if (range.item == nullptr || range.begin >= range.end) return {};
    const BlockId* first = c.batch.block_ids + c.batch.block_start[range.item->seq];
    return {first + range.begin / c.kv.block_size, first + ceil_div(range.end, c.kv.block_size), range.item->kv_head};
  }

  const KvCacheView* kv_ = nullptr;
  Blocks now_, then_;                             // still to come
  const uint8_t *at_ = nullptr, *end_ = nullptr;  // in the block at hand
  int64_t step_bytes_ = 0;
};

}  // namespace llmb::cpu
