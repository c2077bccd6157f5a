// A row is one query head of one token. An item is some tokens of one sequence with all query heads of one KV head, so
// that each key and value loaded serves every row of the item. A few rows (decode) read keys and values as they are
// stored, a chunk of positions after the other, and are bound by those bytes. For more (prefill), bound by
// multiply-adds, a segment is widened to fp32 once, into the second-level cache, and one tile of rows after the other
// goes through all of it, so that the tile's scores never leave the first.
#include "kernels/cpu/paged_attention_segment.h"

#include <cmath>
#include <cstring>

#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/paged_attention_segment.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/paged_attention_int4-inl.h"
#include "kernels/cpu/paged_attention_rows-inl.h"
#include "kernels/cpu/paged_attention_tiles-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

constexpr int64_t kMaxDirectRows = 2 * kTileRows;  // that read keys and values as they are stored
static_assert(kTallTileRows <= kMaxTileRows && kMaxDirectRows <= kMaxTileRows);

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

// Rows that go side by side through softmax_numerators, as each is one chain. With one lane, a row is 16 chains.
constexpr int kSoftmaxRows = kLanes > 1 ? 4 : 1;

// Turns the scores of kRows rows of positions [first, end), whole 16 lanes, into exp(factor * score - max); writes each
// row's max of factor * score, and its sum. factor > 0.
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

// The scales of positions [position, position + n), of keys and of values.
HWY_INLINE void copy_scales(const AttentionCall& c, const AttentionItem& item, int64_t position, int64_t n, float* k,
                            float* v) {
  for_block_runs(c, item, position, n, [&](int64_t i, int64_t run, int64_t block, int64_t offset) {
    const float* from = c.kv.scales(block, item.kv_head) + offset;
    std::memcpy(k + i, from, static_cast<size_t>(run) * sizeof(float));
    std::memcpy(v + i, from + c.kv.block_size, static_cast<size_t>(run) * sizeof(float));
  });
}

// The scores of all rows, [rows][kSegment], become weights; their values' sums start at zero.
template <class Format, class Fetch>
HWY_INLINE void weigh(const AttentionCall& c, const SegmentRows& s, const AttentionScratch& scratch,
                      const AttentionState& state, Fetch& fetch) {
  const bool is_plain = c.params.softcap == 0 && c.params.alibi_slopes == nullptr && c.params.scale > 0;
  const float factor = is_plain ? c.params.scale : 1.0f;
  const int64_t padded = c.padded_dim();
  // The positions that a row sees, from and to whole 16 lanes.
  const auto lanes = [&](int64_t row) {
    const Span span = s.visible(row, 0, kSegment);
    return Span{span.begin / kLogicalLanes * kLogicalLanes, ceil_div(span.end, kLogicalLanes) * kLogicalLanes};
  };
  for (int64_t row = s.first_row; row < s.end_row;) {
    const Span common = lanes(row);
    int64_t n = 0;
    for (; n < kSoftmaxRows && row + n < s.end_row; ++n) {
      const Span own = lanes(row + n), span = s.visible(row + n, 0, kSegment);
      if (own.begin != common.begin || own.end != common.end) break;
      float* scores = scratch.scores + (row + n - s.first_row) * kSegment;
      if constexpr (kHasScales<Format>) multiply(scores, scratch.k_scales, own.begin, own.end);
      if (!is_plain)
        transform_scores(c.params, s.rows[row + n].head, s.begin - (s.rows[row + n].limit - 1), own, scores);
      for (int64_t i = own.begin; i < span.begin; ++i) scores[i] = -HUGE_VALF;
      for (int64_t i = span.end; i < own.end; ++i) scores[i] = -HUGE_VALF;
    }
    float* scores = scratch.scores + (row - s.first_row) * kSegment;
    with_rows<1, kSoftmaxRows>(n, [&](auto rows) HWY_ATTR {
      constexpr int kRows = decltype(rows)::value;
      softmax_numerators<kRows>(scores, common.begin, common.end, factor, state.max + row, state.norm + row, fetch);
    });
    if constexpr (kHasScales<Format>)
      for (int64_t i = 0; i < n; ++i) multiply(scores + i * kSegment, scratch.v_scales, common.begin, common.end);
    row += n;
  }
  std::memset(state.values + s.first_row * padded, 0,
              static_cast<size_t>((s.end_row - s.first_row) * padded) * sizeof(float));
}

template <class Format>
HWY_INLINE void score_few(const AttentionCall& c, const SegmentRows& s, const KeyChunk<Format>& keys, int64_t at,
                          const AttentionScratch& scratch, SegmentFetch& fetch) {
  for_attention_tiles(s.end_row - s.first_row, [&](int64_t tile, auto rows) HWY_ATTR {
    constexpr int kRows = decltype(rows)::value;
    score_rows<Format, kRows>(c, s.part(tile, kRows), keys, at, scratch.q, scratch.scores + tile * kSegment, fetch);
  });
}
template <class Format>
HWY_INLINE void add_few(const AttentionCall& c, const SegmentRows& s, const typename Format::Word* const* values,
                        int64_t at, const AttentionScratch& scratch, float* sums, SegmentFetch& fetch) {
  for_attention_tiles(s.end_row - s.first_row, [&](int64_t tile, auto rows) HWY_ATTR {
    constexpr int kRows = decltype(rows)::value;
    add_to_rows<Format, kRows>(c, s.part(tile, kRows), values, at, kSegmentChunk, scratch.scores + tile * kSegment,
                               sums, fetch);
  });
}

// At most kMaxDirectRows, with keys and values as they are stored. REQUIRES: c.is_regular().
template <class Format>
HWY_INLINE void attend_few(const AttentionCall& c, const AttentionItem& item, const SegmentRows& s,
                           const AttentionScratch& scratch, const AttentionState& state, SegmentFetch& fetch) {
  const int64_t padded = c.padded_dim(), num_rows = s.end_row - s.first_row;
  const Span seen = seen_chunks(s);
  // Steps of the fetch: one for each word of a tile's chains, and for 16 weights of four rows. While weights are
  // computed, memory is kept busy with part of what is next.
  const int64_t key_bytes = c.kv.key_bytes() / c.kv.block_size;
  const int64_t value_bytes = c.kv.head_bytes() / c.kv.block_size - key_bytes;
  const int64_t weigh_bytes = kSegmentChunk / 2 * key_bytes;
  for_chunks(seen, [&](int64_t at, int64_t n) HWY_ATTR {
    fetch.pace(n * key_bytes, attention_passes<Format>(num_rows, n) * (c.kv.head_dim / Format::kTerms));
    score_few(c, s, key_chunk<Format>(c, item, s.begin + at, n), at, scratch, fetch);
  });
  if constexpr (kHasScales<Format>)
    copy_scales(c, item, s.begin + seen.begin, seen.end - seen.begin, scratch.k_scales + seen.begin,
                scratch.v_scales + seen.begin);
  fetch.pace(weigh_bytes, ceil_div(num_rows, 4) * ceil_div(seen.end - seen.begin, kLogicalLanes));
  weigh<Format>(c, s, scratch, state, fetch);
  fetch.pace(-weigh_bytes, 1);
  for_chunks(seen, [&](int64_t at, int64_t n) HWY_ATTR {
    fetch.pace(n * value_bytes, ceil_div(n, Format::kTerms) * attention_passes<Format>(num_rows, padded));
    const typename Format::Word* values[kSegmentChunk / Format::kTerms];
    find_value_rows<Format>(c, item, s.begin + at, n, values);
    add_few<Format>(c, s, values, at, scratch, state.values, fetch);
  });
}

// Any number of rows and any layout, with keys and values in fp32.
template <class Format>
HWY_INLINE void attend_many(const AttentionCall& c, const AttentionItem& item, const SegmentRows& s,
                            const AttentionScratch& scratch, const AttentionState& state) {
  const int64_t padded = c.padded_dim();
  const Span seen = seen_chunks(s);
  KeyChunk<Float32> keys[kSegment / kSegmentChunk];
  const float* values[kSegment];
  for_chunks(seen, [&](int64_t at, int64_t n) HWY_ATTR {
    KeyChunk<Float32>& chunk = keys[at / kSegmentChunk];
    if (std::is_same_v<Format, Float32> && c.is_regular()) {
      chunk = key_chunk<Float32>(c, item, s.begin + at, n);
      find_value_rows<Float32>(c, item, s.begin + at, n, values + at);
      return;
    }
    float* const k_wide = scratch.k_wide + at * c.padded_key_dim();
    float* const v_wide = scratch.v_wide + at * padded;
    widen_keys<Format>(c, item, s.begin + at, n, k_wide);
    chunk = widened_keys(k_wide);
    if (c.kv.latent_dim > 0) latent_values(c, k_wide, n, v_wide);
    else widen_values<Format>(c, item, s.begin + at, n, v_wide);
    for (int64_t p = 0; p < n; ++p) values[at + p] = v_wide + p * padded;
  });
  if constexpr (kHasScales<Format>)
    copy_scales(c, item, s.begin + seen.begin, seen.end - seen.begin, scratch.k_scales + seen.begin,
                scratch.v_scales + seen.begin);
  NoFetch none;
  for_attention_tiles(s.end_row - s.first_row, [&](int64_t tile, auto rows) HWY_ATTR {
    constexpr int kRows = decltype(rows)::value;
    const SegmentRows part = s.part(tile, kRows);
    for_chunks(seen_chunks(part), [&](int64_t at, int64_t)
                                      HWY_ATTR { score_wide<kRows>(c, part, keys[at / kSegmentChunk], at, scratch); });
    weigh<Format>(c, part, scratch, state, none);
    add_wide<kRows>(c, part, values, scratch.scores, state.values);
  });
}

// The rows of `s` with other ends of what they see, as a tile that begins with row 0.
struct CutRows {
  AttentionRow rows[kMaxTileRows];
  SegmentRows s;

  template <class Cut>
  HWY_INLINE CutRows(const SegmentRows& from, const Cut& cut) : s(from) {
    s.rows = rows;
    s.first_row = 0;
    s.end_row = from.end_row - from.first_row;
    for (int64_t row = 0; row < s.end_row; ++row) {
      rows[row] = from.rows[from.first_row + row];
      cut(&rows[row]);
    }
  }
};

// int4: a row sees the groups before its own as they are stored, and then its own, which is open.
HWY_INLINE void attend_groups(const AttentionCall& c, const AttentionItem& item, const SegmentRows& s,
                              const AttentionScratch& scratch, const AttentionState& state) {
  const int64_t padded = c.padded_dim(), begin = s.begin;
  // The last row has the most of them behind it.
  const Span closed{seen_chunks(s).begin, std::clamp<int64_t>(own_group(s.rows[s.end_row - 1]) - begin, 0, kSegment)};
  KeyChunk<Float32> keys[kSegment / kSegmentChunk];
  const float *values[kSegment], *open_values[kSegment];
  for_chunks(closed, [&](int64_t at, int64_t n) HWY_ATTR {
    float* const v_wide = scratch.v_wide + at * padded;
    keys[at / kSegmentChunk] = widened_keys(scratch.k_wide + at * c.padded_key_dim());
    widen_closed_keys(c, item, begin + at, n, scratch.k_wide + at * c.padded_key_dim());
    widen_closed_values(c, item, begin + at, n, v_wide);
    for (int64_t p = 0; p < n; ++p) values[at + p] = v_wide + p * padded;
  });
  NoFetch none;
  for_attention_tiles(s.end_row - s.first_row, [&](int64_t tile, auto rows) HWY_ATTR {
    constexpr int kRows = decltype(rows)::value;
    const SegmentRows part = s.part(tile, kRows);
    AttentionScratch of_tile = scratch;
    of_tile.q += part.first_row * c.kv.head_dim;
    const CutRows before(part, [](AttentionRow* row) {
      row->limit = own_group(*row);
      row->begin = std::min(row->begin, row->limit);
    });
    for_chunks(seen_chunks(before.s), [&](int64_t at, int64_t) HWY_ATTR {
      score_wide<kRows>(c, before.s, keys[at / kSegmentChunk], at, of_tile);
    });
    // Calls body(the rows, the first one's place in the tile, where their own group begins in the segment).
    const auto for_open_groups = [&](const auto& body) HWY_ATTR {
      for_rows_of_group(c, part, [&](const SegmentRows& run, int64_t group) HWY_ATTR {
        const CutRows own(run, [group](AttentionRow* row) { row->begin = std::max(row->begin, group); });
        with_rows<1, kTallTileRows>(run.end_row - run.first_row, [&](auto count) HWY_ATTR {
          body(count, own.s, run.first_row - part.first_row, group - begin);
        });
      });
    };
    for_open_groups([&](auto count, const SegmentRows& own, int64_t first, int64_t at) HWY_ATTR {
      widen_open_keys(c, item, part.rows[part.first_row + first], scratch.k_open);
      KeyChunk<Float32> chunk = widened_keys(scratch.k_open);
      for (int64_t g = kGroups - 1; g >= 0; --g)  // they lie at their place in the chunk
        chunk.group[g] = scratch.k_open + std::max<int64_t>(g - at % kSegmentChunk / kLogicalLanes, 0) * kLogicalLanes;
      AttentionScratch of_rows = of_tile;
      of_rows.q += first * c.kv.head_dim;
      of_rows.scores += first * kSegment;
      score_wide<decltype(count)::value>(c, own, chunk, at / kSegmentChunk * kSegmentChunk, of_rows);
    });
    weigh<Float32>(c, part, scratch, state, none);
    float* const sums = state.values + part.first_row * padded;
    add_wide<kRows>(c, before.s, values, scratch.scores, sums);
    for_open_groups([&](auto count, const SegmentRows& own, int64_t first, int64_t at) HWY_ATTR {
      widen_open_values(c, item, part.rows[part.first_row + first], scratch.v_open);
      for (int64_t p = 0; p < kKvGroup; ++p) open_values[at + p] = scratch.v_open + p * padded;
      add_wide<decltype(count)::value>(c, own, open_values, scratch.scores + first * kSegment, sums + first * padded);
    });
  });
}

template <class Format>
HWY_INLINE void attend(const AttentionCall& c, const AttentionItem& item, int64_t segment,
                       const AttentionScratch& scratch, const AttentionState& state, SegmentFetch* shared_fetch) {
  const SegmentRows s(scratch.rows, segment);
  if (c.is_regular() && s.end_row - s.first_row <= kMaxDirectRows) {
    SegmentFetch fetch = *shared_fetch;  // in registers
    attend_few<Format>(c, item, s, scratch, state, fetch);
    *shared_fetch = fetch;
  } else {
    attend_many<Format>(c, item, s, scratch, state);
  }
}

void attend_segment_target(const AttentionCall& c, const AttentionItem& item, int64_t segment,
                           const AttentionScratch& scratch, const AttentionState& state, SegmentFetch* fetch) {
  if (c.kv.dtype == DType::kI4) attend_groups(c, item, SegmentRows(scratch.rows, segment), scratch, state);
  else if (c.kv.dtype == DType::kF32) attend<Float32>(c, item, segment, scratch, state, fetch);
  else if (c.kv.dtype == DType::kBF16) attend<BFloat16>(c, item, segment, scratch, state, fetch);
  else if (c.kv.dtype == DType::kF8) attend<Fp8>(c, item, segment, scratch, state, fetch);
  else attend<Int8>(c, item, segment, scratch, state, fetch);
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmb::cpu {

HWY_EXPORT(attend_segment_target);

void attend_segment(const AttentionCall& c, const AttentionItem& item, int64_t segment, const AttentionScratch& scratch,
                    const AttentionState& state, SegmentFetch* fetch) {
  HWY_DYNAMIC_DISPATCH(attend_segment_target)(c, item, segment, scratch, state, fetch);
}

}  // namespace llmb::cpu
#endif
