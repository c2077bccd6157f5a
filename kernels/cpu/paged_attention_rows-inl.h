// The rows of an item of paged_attention over one segment: which positions each of them sees, and tiles of them over
// chunks of keys and values. Compiled once for each SIMD target; include after hwy/foreach_target.h.

#if defined(LLMB_KERNELS_CPU_PAGED_ATTENTION_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LLMB_KERNELS_CPU_PAGED_ATTENTION_ROWS_INL_H_
#undef LLMB_KERNELS_CPU_PAGED_ATTENTION_ROWS_INL_H_
#else
#define LLMB_KERNELS_CPU_PAGED_ATTENTION_ROWS_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/cpu/paged_attention_segment.h"
#include "kernels/cpu/paged_attention_tiles-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

// Formats whose numbers are bytes, with a scale for each position.
template <class Format>
constexpr bool kHasScales = std::is_same_v<Format, Int8> || std::is_same_v<Format, Fp8>;

// The rows of an item that see a part of one segment, and what they see of it.
struct SegmentRows {
  const AttentionRow* rows;
  int64_t begin;  // the segment's first position
  int64_t first_row, end_row;

  SegmentRows(std::span<const AttentionRow> all, int64_t segment)
      : rows(all.data()), begin(segment * kSegment), first_row(0), end_row(static_cast<int64_t>(all.size())) {
    while (!rows[first_row].sees(segment)) ++first_row;
    while (!rows[end_row - 1].sees(segment)) --end_row;
  }
  // Some of them.
  SegmentRows part(int64_t first, int64_t num_rows) const {
    SegmentRows some = *this;
    some.first_row = first_row + first;
    some.end_row = some.first_row + num_rows;
    return some;
  }
  // The visible part of `size` positions from the segment's position `from` on.
  Span visible(int64_t row, int64_t from, int64_t size) const {
    return Span{std::clamp<int64_t>(rows[row].begin - begin - from, 0, size),
                std::clamp<int64_t>(rows[row].limit - begin - from, 0, size)};
  }
};

// Scores of a tile of rows, the whole of `s`, with a chunk.
template <class Format, int kRows, class Fetch>
HWY_INLINE void score_rows(const AttentionCall& c, const SegmentRows& s, const KeyChunk<Format>& keys, int64_t at,
                           const float* q, float* scores, Fetch& fetch) {
  const int64_t begin = s.visible(s.first_row, at, kSegmentChunk).begin / kLogicalLanes;
  const int64_t end = ceil_div(s.visible(s.end_row - 1, at, kSegmentChunk).end, kLogicalLanes);
  score_groups<Format, kRows>(q + s.first_row * c.kv.head_dim, c.kv.head_dim, keys, begin, end, scores + at, fetch);
}

// The values of `size` positions from `at` on, times a tile's weights, to the sums of its rows.
template <class Format, int kRows, class Fetch>
HWY_INLINE void add_to_rows(const AttentionCall& c, const SegmentRows& s, const typename Format::Word* const* values,
                            int64_t at, int64_t size, const float* weights, float* sums, Fetch& fetch) {
  const int64_t padded = c.padded_dim();
  weights += at;
  sums += s.first_row * padded;
  // The positions that the first row and the last see whole, all of them do.
  const bool is_whole = s.visible(s.first_row, at, size).end == size && s.visible(s.end_row - 1, at, size).begin == 0;
  Span spans[kRows];
  if (!is_whole)
    for (int r = 0; r < kRows; ++r) spans[r] = s.visible(s.first_row + r, at, size);
  add_values<Format, kRows>(weights, is_whole ? nullptr : spans, size, values, padded, sums, fetch);
}

// The segment's positions that any row sees, from a chunk's begin on.
HWY_INLINE Span seen_chunks(const SegmentRows& s) {
  return {s.visible(s.first_row, 0, kSegment).begin / kSegmentChunk * kSegmentChunk,
          s.visible(s.end_row - 1, 0, kSegment).end};
}

// Calls body(chunk's begin in the segment, positions).
template <class Body>
HWY_INLINE void for_chunks(const Span& span, const Body& body) {
  for (int64_t at = span.begin; at < span.end; at += kSegmentChunk) body(at, std::min(kSegmentChunk, span.end - at));
}

// Functions of their own: within the loops of attend_many, compilers keep some of a tile's sums in memory.
template <int kRows>
HWY_NOINLINE void score_wide(const AttentionCall& c, const SegmentRows& s, const KeyChunk<Float32>& keys, int64_t at,
                             const AttentionScratch& scratch) {
  NoFetch none;
  score_rows<Float32, kRows>(c, s, keys, at, scratch.q, scratch.scores, none);
}
template <int kRows>
HWY_NOINLINE void add_wide(const AttentionCall& c, const SegmentRows& s, const float* const* values,
                           const float* weights, float* sums) {
  NoFetch none;
  add_to_rows<Float32, kRows>(c, s, values, 0, kSegment, weights, sums, none);
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#endif
