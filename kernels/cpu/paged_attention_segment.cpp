// A row is one query head of one token. An item is some tokens of one sequence with all query heads of one KV head, so
// that each key and value loaded serves every row of the item. A few rows (decode) read keys and values as they are
// stored, a chunk of positions after the other, and are bound by those bytes. For more (prefill), bound by
// multiply-adds, a segment is widened to fp32 once, into the second-level cache, and one tile of rows after the other
// goes through all of it, so that the tile's scores never leave the first. int4 is widened for few rows as well, by
// chunks (paged_attention_int4-inl.h).
#include "kernels/cpu/paged_attention_segment.h"

#include <cstring>

#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/paged_attention_segment.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/paged_attention_int4-inl.h"
#include "kernels/cpu/paged_attention_rows-inl.h"
#include "kernels/cpu/paged_attention_softmax-inl.h"
#include "kernels/cpu/paged_attention_tiles-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

// The scales of positions [position, position + n), of keys and of values.
HWY_INLINE void copy_scales(const AttentionCall& c, const AttentionItem& item, int64_t position, int64_t n, float* k,
                            float* v) {
  for_block_runs(c, item, position, n, [&](int64_t i, int64_t run, int64_t block, int64_t offset) {
    const float* from = c.kv.scales(block, item.kv_head) + offset;
    std::memcpy(k + i, from, static_cast<size_t>(run) * sizeof(float));
    std::memcpy(v + i, from + c.kv.block_size, static_cast<size_t>(run) * sizeof(float));
  });
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
  if (c.kv.dtype == DType::kI4) attend_groups(c, item, segment, scratch, state, fetch);
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
