// Asks for the keys and values that a thread works on next, a few cache lines in each step of what it computes now, in
// the order in which they are used and a short way ahead of that, so that memory is never idle, nothing waits for it,
// and the processor's own prefetcher, which follows, has little to guess. Private to kernels/cpu.
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
  void pace(int64_t, int64_t) {}
  HWY_INLINE void step() {}
};

// Belongs to one thread.
class SegmentFetch {
 public:
  // Segments [begin, end) of an item.
  struct Segments {
    const AttentionItem* item = nullptr;  // null: nothing
    int64_t begin = 0, end = 0;
  };

  // Nothing is fetched where a block reaches beyond a segment: its positions are not together.
  explicit SegmentFetch(const AttentionCall& c)
      : c_(c.kv.block_size <= kSegment ? &c : nullptr), lead_(kSegmentChunk * c.kv.head_bytes() / c.kv.block_size) {}

  // The thread begins with `now`; `then` is what it works on next. Items outlive the object.
  void begin(const Segments& now, const Segments& then) {
    if (c_ == nullptr) return;
    if (now_.item != now.item || now_.end != now.end || next_.is_first) {  // fetching is not that far
      now_ = now;
      run_ = next_ = {};
      at_ = end_ = nullptr;
      is_value_ = false;
      first_byte_ = fetched_;
    }
    then_ = then.begin < then.end ? then : Segments();
    used_ = first_byte_;
  }

  // `bytes` more are used in the next `steps` steps.
  void pace(int64_t bytes, int64_t steps) {
    if (c_ == nullptr) return;
    if (next_.at == next_.end) next_ = next_run();
    const int64_t ahead = fetched_ - (end_ - at_) - used_, per_step = kLineBytes * std::max<int64_t>(1, steps);
    step_bytes_ = std::clamp<int64_t>((lead_ + bytes - ahead + per_step / 2) / per_step, 0, kMaxAttentionLinesPerStep) *
                  kLineBytes;
    used_ += bytes;
  }

  // Inline always: a call would cost the tile around it all of its registers.
  HWY_INLINE void step() {
    if (at_ >= end_) {
      if (run_.at == run_.end) {
        if (next_.at == next_.end) return;
        run_ = std::exchange(next_, Run());
        if (run_.is_first) first_byte_ = fetched_;
      }
      at_ = c_->kv.keys(*run_.at++, run_.kv_head) + run_.offset;
      end_ = at_ + run_.bytes;
      fetched_ += run_.bytes;
    }
    for (const uint8_t* const to = std::min(at_ + step_bytes_, end_); at_ < to; at_ += kLineBytes)
      __builtin_prefetch(at_, /*write=*/0, /*locality: the second-level cache*/ 2);
  }

 private:
  static constexpr int64_t kLineBytes = 64;

  // The keys of some blocks, or their values.
  struct Run {
    const BlockId *at = nullptr, *end = nullptr;
    int64_t kv_head = 0, offset = 0, bytes = 0;  // of a head in a block
    bool is_first = false;                       // of an item
  };

  Run next_run() {
    const bool is_first = now_.begin == now_.end;
    if (is_first) {
      if (then_.item == nullptr) return {};
      now_ = std::exchange(then_, Segments());
    }
    const AttentionItem& item = *now_.item;
    const KvCacheView& kv = c_->kv;
    const auto [begin, end] = item.positions(*c_, now_.begin);
    const BlockId* first = c_->batch.block_ids + c_->batch.block_start[item.seq];
    Run run{
        first + begin / kv.block_size, first + ceil_div(end, kv.block_size), item.kv_head, 0, kv.key_bytes(), is_first};
    if (is_value_) {
      run.offset = kv.key_bytes();
      run.bytes = kv.head_bytes() - kv.key_bytes();
      ++now_.begin;
    }
    is_value_ = !is_value_;
    return run;
  }

  const AttentionCall* c_;                        // null: nothing is fetched
  int64_t lead_;                                  // bytes ahead of use: keys and values of a chunk
  Segments now_, then_;                           // still to become runs
  bool is_value_ = false;                         // the next run is of values
  Run run_, next_;                                // to fetch
  const uint8_t *at_ = nullptr, *end_ = nullptr;  // in the block at hand
  int64_t step_bytes_ = 0;
  // Counted since the beginning: bytes of blocks begun, where the item that was begun last started, and bytes used.
  int64_t fetched_ = 0, first_byte_ = 0, used_ = 0;
};

}  // namespace llmb::cpu
