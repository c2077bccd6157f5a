#include "kernels/cpu/paged_attention_parts.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/paged_attention_tasks.h"

namespace llmb::cpu {

namespace {

// Rows [begin, end) of a batch, as one of their own.
class BatchPart {
 public:
  BatchPart(const AttentionBatch& all, int64_t begin, int64_t end)
      : block_ids_(all.block_ids),
        open_(all.open),
        open_blocks_(all.open != nullptr ? all.open_blocks + begin : nullptr) {
    for (int32_t s = 0; s < all.num_seqs; ++s) {
      const int64_t first = std::max<int64_t>(all.query_start[s], begin);
      const int64_t last = std::min<int64_t>(all.query_start[s + 1], end);
      if (first >= last) continue;
      query_start_.push_back(query_start_.back() + static_cast<int32_t>(last - first));
      num_later_.push_back(static_cast<int32_t>(all.query_start[s + 1] - last));
      context_len_.push_back(all.context_len[s] - num_later_.back());
      block_start_.push_back(all.block_start[s]);
    }
  }
  AttentionBatch batch() const {
    return {static_cast<int32_t>(context_len_.size()), query_start_.data(), context_len_.data(), block_start_.data(),
            block_ids_, {}, nullptr, open_, open_blocks_, num_later_.data()};
  }

 private:
  const BlockId* block_ids_;
  const KvCacheView* open_;
  const int32_t* open_blocks_;
  std::vector<int32_t> query_start_ = {0}, context_len_, block_start_, num_later_;
};

// States of all heads of some tokens over one segment, as ranks give them to each other: those of a KV head's query
// heads follow each other, token by token. How a rank cuts its work into items does not show.
class TokenStates {
 public:
  static int64_t floats(const AttentionCall& c, int64_t num_tokens) {
    return AttentionState::floats(num_tokens * c.params.num_heads, c.padded_dim());
  }
  TokenStates(const AttentionCall& c, float* at, int64_t num_tokens)
      : c_(c), num_tokens_(num_tokens), all_(at, num_tokens * c.params.num_heads, c.padded_dim()) {}
  AttentionState of(const AttentionItem& item) const {
    const int64_t row = num_tokens_ * c_.head_begin(item.kv_head) + item.token_begin * c_.num_heads_of(item.kv_head);
    return all_.from(row, c_.padded_dim());
  }

 private:
  const AttentionCall& c_;
  int64_t num_tokens_;
  AttentionState all_;
};

// Segments that follow each other, of which no rank has more than its message holds.
struct SegmentWindow {
  int64_t begin = 0, end = 0;
  std::vector<int32_t> owner, place;  // [end - begin]  whose each is, and its place in that rank's message

  bool has(int64_t segment) const { return segment >= begin && segment < end; }
};

SegmentWindow next_window(int64_t begin, int64_t end, int64_t slice, int num_ranks, int64_t most) {
  SegmentWindow window{begin, begin, {}, {}};
  std::vector<int32_t> counts(static_cast<size_t>(num_ranks));
  for (; window.end < end; ++window.end) {
    const auto owner = static_cast<int32_t>(owner_of_position(window.end * kSegment, slice, num_ranks));
    int32_t& count = counts[static_cast<size_t>(owner)];
    if (count == most) break;
    window.owner.push_back(owner), window.place.push_back(count++);
  }
  return window;
}

// Attention of some rows, tokens 0, 1, … of the call, of which the results of [own_begin, own_end) are wanted.
class TokenRun {
 public:
  TokenRun(AttentionCall call, int64_t num_tokens, int64_t own_begin, int64_t own_end, Collectives& ranks,
           ThreadPool& pool)
      : c_(call), num_tokens_(num_tokens), own_begin_(own_begin), own_end_(own_end), ranks_(ranks), pool_(pool) {
    items_.make(&c_, pool.num_threads());
  }

  void run() {
    const int64_t state_floats = TokenStates::floats(c_, num_tokens_);
    const int64_t most = ranks_.room_bytes() / int64_t{sizeof(float)} / state_floats;
    LLMB_CHECK(most > 0 && items_.num_phases() == 1);
    int64_t begin = INT64_MAX, end = 0;
    for (const AttentionItem& item : items_.phase(0)) {
      begin = std::min(begin, item.first_segment(c_));
      end = std::max(end, item.end_segment(c_));
    }
    const TokenStates totals(c_, grow(&per_thread<AlignedBuffer>([] {}), state_floats), num_tokens_);
    while (begin < end) {
      const SegmentWindow window = next_window(begin, end, c_.kv.block_size, ranks_.size(), most);
      const auto bytes = static_cast<int64_t>(sizeof(float)) * state_floats * (1 + last_place(window));
      attend(window, static_cast<float*>(ranks_.room(bytes)), state_floats);
      merge(window, ranks_.share(), state_floats, totals, window.end == end);
      begin = window.end;
    }
  }

 private:
  struct Task {
    const AttentionItem* item;
    int64_t segment;
  };

  static int32_t last_place(const SegmentWindow& window) {
    return *std::max_element(window.place.begin(), window.place.end());
  }

  // All rows over the rank's own segments.
  void attend(const SegmentWindow& window, float* room, int64_t state_floats) {
    tasks_.clear();
    for (const AttentionItem& item : items_.phase(0)) {
      const int64_t end = std::min(window.end, item.end_segment(c_));
      for (int64_t segment = std::max(window.begin, item.first_segment(c_)); segment < end; ++segment)
        if (window.owner[static_cast<size_t>(segment - window.begin)] == ranks_.rank())
          tasks_.push_back({&item, segment});
    }
    share_tasks(
        c_, std::span<const Task>(tasks_), pool_,
        [](const Task& t) {
          return SegmentFetch::Segments{t.item, t.segment, t.segment + 1};
        },
        [&](const Task& t, SegmentFetch* fetch) {
          const int64_t place = window.place[static_cast<size_t>(t.segment - window.begin)];
          const TokenStates states(c_, room + place * state_floats, num_tokens_);
          attend_alone(c_, *t.item, t.segment, states.of(*t.item), fetch);
        });
  }

  // Own rows over all segments, in order.
  void merge(const SegmentWindow& window, std::span<const void* const> rooms, int64_t state_floats,
             const TokenStates& totals, bool is_last) {
    const std::span<const AttentionItem> items = items_.phase(0);
    pool_.parallel_for(static_cast<int64_t>(items.size()), [&](int64_t i, int) {
      AttentionItem item = items[static_cast<size_t>(i)];
      item.token_begin = std::max(item.token_begin, own_begin_);
      item.token_end = std::min(item.token_end, own_end_);
      if (item.token_begin >= item.token_end) return;
      const std::span<const AttentionRow> rows = make_rows(c_, item, own_begin_);
      const AttentionState total = totals.of(item);
      const int64_t end = std::min(window.end, item.end_segment(c_));
      for (int64_t segment = std::max(window.begin, item.first_segment(c_)); segment < end; ++segment) {
        const auto at = static_cast<size_t>(segment - window.begin);
        const void* const given = rooms[static_cast<size_t>(window.owner[at])];
        auto* const room = const_cast<float*>(static_cast<const float*>(given));  // only read
        const TokenStates states(c_, room + window.place[at] * state_floats, num_tokens_);
        merge_segment(c_, rows, segment, states.of(item), total);
      }
      if (is_last) write_rows(c_, rows, total);
    });
  }

  AttentionCall c_;
  const int64_t num_tokens_, own_begin_, own_end_;
  Collectives& ranks_;
  ThreadPool& pool_;
  AttentionItems items_;
  std::vector<Task> tasks_;
};

}  // namespace

void paged_attention_parts(const float* q, int64_t q_stride, float* out, int64_t first_own, int64_t num_own,
                           const AttentionBatch& batch, const AttentionParams& params, const KvCacheView& kv,
                           Collectives& ranks, ThreadPool& pool) {
  LLMB_CHECK(kv.block_size % kSegment == 0 && batch.shared_prefixes.empty());
  const AttentionCall all = make_attention_call(q, q_stride, out, batch, params, kv);
  const int64_t num_tokens = batch.query_start[batch.num_seqs];
  const int64_t token_floats = params.num_heads * (all.padded_dim() + 2);
  const int64_t most = ranks.room_bytes() / int64_t{sizeof(float)} / token_floats;
  LLMB_CHECK(most > 0);
  for (int64_t begin = batch.query_start[0]; begin < num_tokens; begin += most) {
    const int64_t end = std::min(num_tokens, begin + most);
    const int64_t own_begin = std::clamp(first_own, begin, end), own_end = std::clamp(first_own + num_own, begin, end);
    const BatchPart part(batch, begin, end);
    AttentionCall c = all;
    c.qkv = q + begin * q_stride;
    c.batch = part.batch();
    // Row 0 of the run's output is its first own one.
    c.out = out + std::max<int64_t>(0, own_begin - first_own) * params.num_heads * kv.value_dim();
    TokenRun(c, end - begin, own_begin - begin, own_end - begin, ranks, pool).run();
  }
}

}  // namespace llmb::cpu
