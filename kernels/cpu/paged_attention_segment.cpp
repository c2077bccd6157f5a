// A row is one query head of one token. An item is some tokens of one sequence with all query heads of one KV head, so
// that each key and value loaded serves every row of the item. A few rows read keys and values as they are stored; for
// more, a chunk is widened to fp32 once. Decode is bound by the bytes of K and V, prefill by multiply-adds.
#include "kernels/cpu/paged_attention_segment.h"

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/float_formats.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/paged_attention_segment.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/paged_attention_tiles-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

constexpr int64_t kMaxDirectRows = 2 * kTileRows;  // that read keys and values as they are stored

// As reduce16, in registers: upper half onto lower half, four times.
template <class DV, class Op>
HWY_INLINE float fold(DV, hn::Vec<DV> v, [[maybe_unused]] const Op& op) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (hn::MaxLanes(DV()) > 1) {
    const hn::Half<DV> half;
    return fold(half, op(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), op);
  }
#endif
  return hn::GetLane(v);
}
template <class Op>
HWY_INLINE float fold16(V16 v, const Op& op) {
  LLMB_UNROLL for (int half = kParts / 2; half >= 1; half /= 2) {
    LLMB_UNROLL for (int i = 0; i < half; ++i) v.part[i] = op(v.part[i], v.part[i + half]);
  }
  return fold(D(), v.part[0], op);
}

HWY_INLINE void multiply(float* x, const float* by, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += kLanes)
    hn::StoreU(hn::Mul(hn::LoadU(D(), x + i), hn::LoadU(D(), by + i)), D(), x + i);
}

// Dot products of a row of `head` become scores. distance: from the query's position to the segment's begin.
HWY_INLINE void transform_scores(const AttentionParams& p, int64_t head, int64_t distance, Span span, float* scores) {
  const D d;
  const V scale = hn::Set(d, p.scale), cap = hn::Set(d, p.softcap);
  const V slope = hn::Set(d, p.alibi_slopes != nullptr ? p.alibi_slopes[head] : 0.0f);
  for (int64_t i = span.begin; i < span.end; i += kLanes) {
    V x = hn::Mul(hn::LoadU(d, scores + i), scale);
    if (p.softcap > 0) x = hn::Mul(tanh_v(hn::Div(x, cap)), cap);
    if (p.alibi_slopes != nullptr) x = hn::MulAdd(slope, hn::Iota(d, static_cast<float>(distance + i)), x);
    hn::StoreU(x, d, scores + i);
  }
}

// Turns the scores of kRows rows of positions [first, end), whole 16 lanes, into exp(factor * score - max); writes each
// row's max of factor * score, and its sum. factor > 0. Rows go side by side, as each is one chain.
template <int kRows, class Fetch>
HWY_INLINE void softmax_numerators(float* scores, int64_t first, int64_t end, float factor, float* max_out,
                                   float* norm_out, Fetch& fetch) {
  V16 max[kRows], norm[kRows];
  LLMB_UNROLL for (int r = 0; r < kRows; ++r) max[r] = set16(-HUGE_VALF);
  for (int64_t i = first; i < end; i += kLogicalLanes) {
    LLMB_UNROLL for (int r = 0; r < kRows; ++r) max[r] =
        map16(max[r], load16(scores + r * kSegment + i), [](V a, V b) HWY_ATTR { return hn::Max(a, b); });
  }
  const V f = hn::Set(D(), factor);
  V m[kRows];
  LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
    max_out[r] = fold16(max[r], [](auto a, auto b) HWY_ATTR { return hn::Max(a, b); }) * factor;
    m[r] = hn::Set(D(), max_out[r]);
    norm[r] = set16(0);
  }
  for (int64_t i = first; i < end; i += kLogicalLanes) {
    LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
      float* at = scores + r * kSegment + i;
      const V16 p = map16(load16(at), [&f, &m, r](V a) HWY_ATTR { return exp_bounded(hn::MulSub(a, f, m[r])); });
      store16(p, at);
      norm[r] = map16(norm[r], p, [](V a, V b) HWY_ATTR { return hn::Add(a, b); });
    }
    fetch.step();
  }
  LLMB_UNROLL for (int r = 0; r < kRows; ++r) norm_out[r] =
      fold16(norm[r], [](auto a, auto b) HWY_ATTR { return hn::Add(a, b); });
}

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
  // Of `size` positions from the segment's position `from` on.
  Span visible(int64_t row, int64_t from, int64_t size) const {
    return Span{std::clamp<int64_t>(rows[row].begin - begin - from, 0, size),
                std::clamp<int64_t>(rows[row].limit - begin - from, 0, size)};
  }
};

template <class Format, class Fetch>
HWY_INLINE void score_chunk(const AttentionCall& c, const SegmentRows& s, const KeyChunk<Format>& keys, int64_t at,
                            const AttentionScratch& scratch, Fetch& fetch) {
  for_row_tiles<kTallTileRows>(s.end_row - s.first_row, [&](int64_t tile, auto tile_rows) HWY_ATTR {
    constexpr int kRows = decltype(tile_rows)::value;
    const int64_t row = s.first_row + tile;
    const int64_t begin = s.visible(row, at, kSegmentChunk).begin / kLogicalLanes;
    const int64_t end = ceil_div(s.visible(row + kRows - 1, at, kSegmentChunk).end, kLogicalLanes);
    score_groups<Format, kRows>(scratch.q + row * c.kv.head_dim, c.kv.head_dim, keys, begin, end,
                                scratch.scores + row * kSegment + at, fetch);
  });
}

template <class Format, class Fetch>
HWY_INLINE void value_rows(const AttentionCall& c, const SegmentRows& s, const ValueChunk<Format>& values, int64_t at,
                           const AttentionScratch& scratch, float* out, Fetch& fetch) {
  const int64_t padded = c.padded_dim();
  for_row_tiles<kTallTileRows>(s.end_row - s.first_row, [&](int64_t tile, auto tile_rows) HWY_ATTR {
    constexpr int kRows = decltype(tile_rows)::value;
    const int64_t row = s.first_row + tile;
    const float* p = scratch.scores + row * kSegment + at;
    // What the first row and the last see whole, all of them do.
    if (s.visible(row, at, kSegmentChunk).end == kSegmentChunk &&
        s.visible(row + kRows - 1, at, kSegmentChunk).begin == 0)
      return value_columns<Format, kRows>(p, 0, kSegmentChunk, values, padded, out + row * padded, fetch);
    Span spans[kRows];
    for (int r = 0; r < kRows; ++r) spans[r] = s.visible(row + r, at, kSegmentChunk);
    add_chunk<Format, kRows>(p, spans, values, padded, out + row * padded, fetch);
  });
}

// The scales of positions [position, position + n), of keys and of values.
HWY_INLINE void copy_scales(const AttentionCall& c, const AttentionItem& item, int64_t position, int64_t n, float* k,
                            float* v) {
  for_block_runs(c, item, position, n, [&](int64_t i, int64_t run, int64_t block, int64_t offset) {
    const float* from = c.kv.scales(block, item.kv_head) + offset;
    std::memcpy(k + i, from, static_cast<size_t>(run) * sizeof(float));
    std::memcpy(v + i, from + c.kv.block_size, static_cast<size_t>(run) * sizeof(float));
  });
}

// The scores of all rows become weights; their values' sums start at zero.
template <class Format, class Fetch>
HWY_INLINE void weigh(const AttentionCall& c, const SegmentRows& s, const AttentionScratch& scratch,
                      const AttentionState& state, Fetch& fetch) {
  constexpr bool kIsInt8 = std::is_same_v<Format, Int8>;
  const bool is_plain = c.params.softcap == 0 && c.params.alibi_slopes == nullptr && c.params.scale > 0;
  const float factor = is_plain ? c.params.scale : 1.0f;
  const int64_t padded = c.padded_dim();
  // What a row sees, from and to whole 16 lanes.
  const auto lanes = [&](int64_t row) {
    const Span span = s.visible(row, 0, kSegment);
    return Span{span.begin / kLogicalLanes * kLogicalLanes, ceil_div(span.end, kLogicalLanes) * kLogicalLanes};
  };
  for (int64_t row = s.first_row; row < s.end_row;) {
    const Span common = lanes(row);
    int64_t n = 0;
    for (; n < 4 && row + n < s.end_row; ++n) {
      const Span own = lanes(row + n), span = s.visible(row + n, 0, kSegment);
      if (own.begin != common.begin || own.end != common.end) break;
      float* scores = scratch.scores + (row + n) * kSegment;
      if constexpr (kIsInt8) multiply(scores, scratch.k_scales, own.begin, own.end);
      if (!is_plain)
        transform_scores(c.params, s.rows[row + n].head, s.begin - (s.rows[row + n].limit - 1), own, scores);
      for (int64_t i = own.begin; i < span.begin; ++i) scores[i] = -HUGE_VALF;
      for (int64_t i = span.end; i < own.end; ++i) scores[i] = -HUGE_VALF;
    }
    float* scores = scratch.scores + row * kSegment;
    const auto run = [&](auto rows) HWY_ATTR {
      constexpr int kRows = decltype(rows)::value;
      softmax_numerators<kRows>(scores, common.begin, common.end, factor, state.max + row, state.norm + row, fetch);
    };
    if (n == 4) run(std::integral_constant<int, 4>());
    else if (n == 3) run(std::integral_constant<int, 3>());
    else if (n == 2) run(std::integral_constant<int, 2>());
    else run(std::integral_constant<int, 1>());
    if constexpr (kIsInt8)
      for (int64_t i = 0; i < n; ++i) multiply(scores + i * kSegment, scratch.v_scales, common.begin, common.end);
    row += n;
  }
  std::memset(state.values + s.first_row * padded, 0,
              static_cast<size_t>((s.end_row - s.first_row) * padded) * sizeof(float));
}

// For Float32: as it is stored, or as it was widened.
template <class Format, bool kIsDirect, class Fetch>
HWY_INLINE void attend_positions(const AttentionCall& c, const AttentionItem& item, const SegmentRows& s,
                                 const AttentionScratch& scratch, const AttentionState& state, Fetch& fetch) {
  const int64_t padded = c.padded_dim();
  const int64_t first = s.visible(s.first_row, 0, kSegment).begin / kSegmentChunk * kSegmentChunk;
  const int64_t end = s.visible(s.end_row - 1, 0, kSegment).end;
  const auto for_chunks = [&](const auto& body) HWY_ATTR {
    for (int64_t at = first; at < end; at += kSegmentChunk) body(at, s.begin + at, std::min(kSegmentChunk, end - at));
  };
  // Steps of the fetch: one for each word of a tile's chains, and for 16 weights of four rows. While weights are
  // computed, memory is kept busy with part of what is next.
  const int64_t num_rows = s.end_row - s.first_row;
  const int64_t tiles = ceil_div(num_rows, kTallTileRows),
                columns = tile_columns(static_cast<int>(ceil_div(num_rows, tiles)));
  const int64_t key_bytes = c.kv.key_bytes() / c.kv.block_size;
  const int64_t value_bytes = c.kv.head_bytes() / c.kv.block_size - key_bytes;
  const int64_t weigh_bytes = kSegmentChunk / 2 * key_bytes;
  for_chunks([&](int64_t at, int64_t position, int64_t n) HWY_ATTR {
    fetch.pace(n * key_bytes, tiles * ceil_div(n, columns) * (c.kv.head_dim / Format::kTerms));
    if constexpr (kIsDirect) {
      score_chunk(c, s, key_chunk<Format>(c, item, position, n), at, scratch, fetch);
    } else {
      widen_keys<Format>(c, item, position, n, scratch.k_chunk);
      score_chunk(c, s, widened_keys(scratch.k_chunk), at, scratch, fetch);
    }
  });
  if constexpr (std::is_same_v<Format, Int8>)
    copy_scales(c, item, s.begin + first, end - first, scratch.k_scales + first, scratch.v_scales + first);
  fetch.pace(weigh_bytes, ceil_div(num_rows, 4) * ceil_div(end - first, kLogicalLanes));
  weigh<Format>(c, s, scratch, state, fetch);
  fetch.pace(-weigh_bytes, 1);
  for_chunks([&](int64_t at, int64_t position, int64_t n) HWY_ATTR {
    fetch.pace(n * value_bytes, ceil_div(n, Format::kTerms) * tiles * ceil_div(padded, columns));
    if constexpr (kIsDirect) {
      value_rows(c, s, value_chunk<Format>(c, item, position, n), at, scratch, state.values, fetch);
    } else {
      widen_values<Format>(c, item, position, n, scratch.v_chunk);
      value_rows(c, s, widened_values(scratch.v_chunk, padded), at, scratch, state.values, fetch);
    }
  });
}

template <class Format>
HWY_INLINE void attend(const AttentionCall& c, const AttentionItem& item, int64_t segment,
                       const AttentionScratch& scratch, const AttentionState& state, SegmentFetch* shared_fetch) {
  const SegmentRows s(scratch.rows, segment);
  const int64_t num_rows = s.end_row - s.first_row;
  if (c.is_regular() && num_rows <= kMaxDirectRows) {
    SegmentFetch fetch = *shared_fetch;  // in registers
    attend_positions<Format, true>(c, item, s, scratch, state, fetch);
    *shared_fetch = fetch;
  } else {
    NoFetch none;
    if (std::is_same_v<Format, Float32> && c.is_regular())
      attend_positions<Float32, true>(c, item, s, scratch, state, none);
    else attend_positions<Format, false>(c, item, s, scratch, state, none);
  }
}

void attend_segment_target(const AttentionCall& c, const AttentionItem& item, int64_t segment,
                           const AttentionScratch& scratch, const AttentionState& state, SegmentFetch* fetch) {
  if (c.kv.dtype == DType::kF32) attend<Float32>(c, item, segment, scratch, state, fetch);
  else if (c.kv.dtype == DType::kBF16) attend<BFloat16>(c, item, segment, scratch, state, fetch);
  else attend<Int8>(c, item, segment, scratch, state, fetch);
}

void merge_segment_target(const AttentionCall& c, std::span<const AttentionRow> rows, int64_t segment,
                          const AttentionState& from, const AttentionState& into) {
  const int64_t padded = c.padded_dim();
  for (size_t row = 0; row < rows.size(); ++row) {
    if (!rows[row].sees(segment)) continue;
    if (rows[row].begin >= segment * kSegment) {  // there is nothing before
      const auto offset = static_cast<int64_t>(row) * padded;
      std::memcpy(into.values + offset, from.values + offset, static_cast<size_t>(padded) * sizeof(float));
      into.max[row] = from.max[row];
      into.norm[row] = from.norm[row];
      continue;
    }
    const float max = std::max(into.max[row], from.max[row]);
    const V keep = exp_v(hn::Set(D(), into.max[row] - max)), add = exp_v(hn::Set(D(), from.max[row] - max));
    const V norm = hn::Set(D(), into.norm[row]), more = hn::Set(D(), from.norm[row]);
    into.max[row] = max;
    into.norm[row] = hn::GetLane(hn::MulAdd(norm, keep, hn::Mul(more, add)));
    float* at = into.values + static_cast<int64_t>(row) * padded;
    const float* values = from.values + static_cast<int64_t>(row) * padded;
    for (int64_t i = 0; i < padded; i += kLogicalLanes)
      store16(map16(load16(at + i), load16(values + i),
                    [keep, add](V a, V b) HWY_ATTR { return hn::MulAdd(a, keep, hn::Mul(b, add)); }),
              at + i);
  }
}

void write_rows_target(const AttentionCall& c, std::span<const AttentionRow> rows, const AttentionState& state) {
  const int64_t dim = c.kv.head_dim, padded = c.padded_dim();
  for (size_t row = 0; row < rows.size(); ++row) {
    float inverse_norm = 1.0f / state.norm[row];
    if (c.params.sinks != nullptr) {
      const float sink = c.params.sinks[rows[row].head], max = std::max(state.max[row], sink);
      const float keep = hn::GetLane(exp_v(hn::Set(D(), state.max[row] - max)));
      const float extra = hn::GetLane(exp_v(hn::Set(D(), sink - max)));
      inverse_norm = keep / (state.norm[row] * keep + extra);
    }
    const V inverse = hn::Set(D(), inverse_norm);
    const float* values = state.values + static_cast<int64_t>(row) * padded;
    for (int64_t i = 0; i < dim; i += kLogicalLanes) {
      const V16 x = map16(load16(values + i), [inverse](V a) HWY_ATTR { return hn::Mul(a, inverse); });
      if (dim - i >= kLogicalLanes) {
        store16(x, rows[row].out + i);
      } else {
        store16_partial(x, rows[row].out + i, dim - i);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmb::cpu {

HWY_EXPORT(attend_segment_target);
HWY_EXPORT(merge_segment_target);
HWY_EXPORT(write_rows_target);

void attend_segment(const AttentionCall& c, const AttentionItem& item, int64_t segment, const AttentionScratch& scratch,
                    const AttentionState& state, SegmentFetch* fetch) {
  HWY_DYNAMIC_DISPATCH(attend_segment_target)(c, item, segment, scratch, state, fetch);
}

void merge_segment(const AttentionCall& c, std::span<const AttentionRow> rows, int64_t segment,
                   const AttentionState& from, const AttentionState& into) {
  HWY_DYNAMIC_DISPATCH(merge_segment_target)(c, rows, segment, from, into);
}

void write_rows(const AttentionCall& c, std::span<const AttentionRow> rows, const AttentionState& state) {
  HWY_DYNAMIC_DISPATCH(write_rows_target)(c, rows, state);
}

}  // namespace llmb::cpu
#endif
