// A row is one query head of one token. An item is a few tokens of one sequence with all query heads of one KV head, so
// that each key and value loaded serves every row of the item. Decode is bound by the bytes of K and V, prefill by
// multiply-adds.
#include "kernels/cpu/paged_attention_segment.h"

#include <cmath>
#include <cstring>

#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/paged_attention_segment.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

constexpr int kGroups = static_cast<int>(kSegmentChunk) / kLogicalLanes;  // of 16 positions in a chunk

// Where the keys of 16 consecutive positions start, for each 16 of a chunk; channel i is at [i * stride].
struct KeyChunk {
  const float* group[kGroups];
  int64_t stride;
};

// Positions past the context come from allocated memory, but may hold anything.
HWY_INLINE KeyChunk key_chunk(const AttentionCall& c, const AttentionItem& item, int64_t position, float* gather) {
  const int64_t bs = c.kv.block_size, context = c.batch.context_len[item.seq];
  const BlockId* blocks = c.batch.block_ids + c.batch.block_start[item.seq];
  KeyChunk chunk;
  if (bs % kLogicalLanes == 0) {
    chunk.stride = bs;
    for (int64_t g = 0; g < kGroups; ++g) {
      const int64_t p = position + g * kLogicalLanes;
      chunk.group[g] = p < context ? c.kv.k + c.kv.block_offset(blocks[p / bs], item.kv_head) + p % bs : chunk.group[0];
    }
    return chunk;
  }
  chunk.stride = kSegmentChunk;
  for (int64_t g = 0; g < kGroups; ++g) chunk.group[g] = gather + g * kLogicalLanes;
  const int64_t end = std::min(context, position + kSegmentChunk);
  for (int64_t p = position; p < end;) {
    const int64_t run = std::min(end - p, bs - p % bs);
    const float* from = c.kv.k + c.kv.block_offset(blocks[p / bs], item.kv_head) + p % bs;
    for (int64_t i = 0; i < c.kv.head_dim; ++i)
      std::memcpy(gather + i * kSegmentChunk + (p - position), from + i * bs, static_cast<size_t>(run) * sizeof(float));
    p += run;
  }
  return chunk;
}

// Rows of the values of positions [position, position + n), padded_dim floats readable in each.
HWY_INLINE void value_rows(const AttentionCall& c, const AttentionItem& item, int64_t position, int64_t n,
                           float* gather, const float** rows) {
  const int64_t bs = c.kv.block_size, dim = c.kv.head_dim, padded = c.padded_dim();
  const BlockId* block = c.batch.block_ids + c.batch.block_start[item.seq] + position / bs;
  for (int64_t i = 0, offset = position % bs; i < n; offset = 0, ++block) {
    const float* row = c.kv.v + c.kv.block_offset(*block, item.kv_head) + offset * dim;
    for (const int64_t end = std::min(n, i + bs - offset); i < end; ++i, row += dim) rows[i] = row;
  }
  if (padded == dim) return;
  for (int64_t i = 0; i < n; ++i) {
    float* row = gather + i * padded;
    std::memcpy(row, rows[i], static_cast<size_t>(dim) * sizeof(float));
    std::memset(row + dim, 0, static_cast<size_t>(padded - dim) * sizeof(float));
    rows[i] = row;
  }
}

template <int kRows>
HWY_INLINE void score_tile(const float* const* q, int64_t dim, const KeyChunk& keys, float* scores) {
  constexpr int kVecs = kTileColumns / kLanes;
  for (int64_t column = 0; column < kSegmentChunk; column += kTileColumns) {
    const float* b[kVecs];
    LLMB_UNROLL for (int v = 0; v < kVecs; ++v) {
      const int64_t lane = column + v * kLanes;
      b[v] = keys.group[lane / kLogicalLanes] + lane % kLogicalLanes;
    }
    V acc[kRows * kVecs];
    LLMB_UNROLL for (int i = 0; i < kRows * kVecs; ++i) acc[i] = hn::Zero(D());
    mul_add_tile<kRows, kVecs>(q, dim, b, keys.stride, acc);
    LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
      LLMB_UNROLL for (int v = 0; v < kVecs; ++v)
          hn::StoreU(acc[r * kVecs + v], D(), scores + r * kSegment + column + v * kLanes);
    }
  }
}

// Positions of a segment, counted from its begin.
struct Span {
  int64_t begin, end;
};

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

// Turns the scores of `span` into exp(scale * score - max), writes the max and their sum.
HWY_INLINE void softmax_numerators(float* scores, Span span, float scale, float* max_out, float* norm_out) {
  const int64_t first = span.begin / kLogicalLanes * kLogicalLanes;
  const int64_t padded = (span.end + kLogicalLanes - 1) / kLogicalLanes * kLogicalLanes;
  for (int64_t i = first; i < span.begin; ++i) scores[i] = -HUGE_VALF;
  for (int64_t i = span.end; i < padded; ++i) scores[i] = -HUGE_VALF;
  const V s = hn::Set(D(), scale);
  V16 max = set16(-HUGE_VALF);
  for (int64_t i = first; i < padded; i += kLogicalLanes) {
    const V16 x = map16(load16(scores + i), [s](V a) HWY_ATTR { return hn::Mul(a, s); });
    store16(x, scores + i);
    max = map16(max, x, [](V a, V b) HWY_ATTR { return hn::Max(a, b); });
  }
  *max_out = max16(max);
  const V m = hn::Set(D(), *max_out);
  V16 norm = set16(0);
  for (int64_t i = first; i < padded; i += kLogicalLanes) {
    const V16 p = map16(load16(scores + i), [m](V a) HWY_ATTR { return exp_v(hn::Sub(a, m)); });
    store16(p, scores + i);
    norm = map16(norm, p, [](V a, V b) HWY_ATTR { return hn::Add(a, b); });
  }
  *norm_out = sum16(norm);
}

// values[r] += p[r][0 … n) · v[0 … n) over kVecs vectors of columns.
template <int kRows, int kVecs>
HWY_INLINE void value_tile(const float* const* p, int64_t n, const float* const* v, int64_t column, int64_t dim,
                           float* values) {
  const D d;
  V acc[kRows * kVecs];
  LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
    LLMB_UNROLL for (int i = 0; i < kVecs; ++i) acc[r * kVecs + i] =
        hn::LoadU(d, values + r * dim + column + i * kLanes);
  }
  mul_add_rows<kRows, kVecs>(p, n, v, column, acc);
  LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
    LLMB_UNROLL for (int i = 0; i < kVecs; ++i)
        hn::StoreU(acc[r * kVecs + i], d, values + r * dim + column + i * kLanes);
  }
}

template <int kRows>
HWY_INLINE void value_columns(const float* const* p, int64_t n, const float* const* v, int64_t dim, float* values) {
  int64_t column = 0;
  for (; column + kTileColumns <= dim; column += kTileColumns)
    value_tile<kRows, kTileColumns / kLanes>(p, n, v, column, dim, values);
  if constexpr (kTileColumns > kLogicalLanes) {
    for (; column < dim; column += kLogicalLanes) value_tile<kRows, kParts>(p, n, v, column, dim, values);
  }
}

// Adds the values of positions [0, n) of a chunk to kRows rows; row r sees those of spans[r], which do not fall. For
// each row its positions come in order, so that its sum does not depend on the rows beside it.
template <int kRows>
HWY_INLINE void add_chunk(const float* const* p, const Span* spans, const float* const* v, int64_t dim, float* values) {
  const auto one = [&](int r, int64_t begin, int64_t end) HWY_ATTR {
    const float* from = p[r] + begin;
    if (begin < end) value_columns<1>(&from, end - begin, v + begin, dim, values + r * dim);
  };
  const Span shared{spans[kRows - 1].begin, spans[0].end};
  if (shared.begin >= shared.end) {
    for (int r = 0; r < kRows; ++r) one(r, spans[r].begin, spans[r].end);
    return;
  }
  const float* from[kRows];
  for (int r = 0; r < kRows; ++r) from[r] = p[r] + shared.begin;
  for (int r = 0; r < kRows - 1; ++r) one(r, spans[r].begin, shared.begin);  // later tokens begin a little later
  value_columns<kRows>(from, shared.end - shared.begin, v + shared.begin, dim, values);
  for (int r = 1; r < kRows; ++r) one(r, shared.end, spans[r].end);  // and see a little more
}

void attend_segment_target(const AttentionCall& c, const AttentionItem& item, int64_t segment,
                           const AttentionScratch& scratch, const AttentionState& state) {
  const AttentionRow* rows = scratch.rows.data();
  const int64_t dim = c.kv.head_dim, padded = c.padded_dim(), begin = segment * kSegment;
  const auto visible = [&](int64_t row, int64_t from, int64_t size) {
    return Span{std::clamp<int64_t>(rows[row].begin - begin - from, 0, size),
                std::clamp<int64_t>(rows[row].limit - begin - from, 0, size)};
  };
  int64_t first_row = 0, end_row = static_cast<int64_t>(scratch.rows.size());
  while (!rows[first_row].sees(segment)) ++first_row;
  while (!rows[end_row - 1].sees(segment)) --end_row;
  const int64_t first_chunk = visible(first_row, 0, kSegment).begin / kSegmentChunk * kSegmentChunk;
  const int64_t num_positions = visible(end_row - 1, 0, kSegment).end;
  // Whether any of the rows sees a position of the chunk.
  const auto overlaps = [&](int64_t first, int64_t last, int64_t at) {
    return visible(last, 0, kSegment).end > at && visible(first, 0, kSegment).begin < at + kSegmentChunk;
  };

  for (int64_t at = first_chunk; at < num_positions; at += kSegmentChunk) {
    const KeyChunk keys = key_chunk(c, item, begin + at, scratch.k_gather);
    for_row_tiles(end_row - first_row, [&](int64_t tile, auto tile_rows) HWY_ATTR {
      constexpr int kRows = decltype(tile_rows)::value;
      const int64_t row = first_row + tile;
      if (!overlaps(row, row + kRows - 1, at)) return;
      const float* q[kRows];
      for (int r = 0; r < kRows; ++r) q[r] = rows[row + r].q;
      score_tile<kRows>(q, dim, keys, scratch.scores + row * kSegment + at);
    });
  }
  const bool is_plain = c.params.softcap == 0 && c.params.alibi_slopes == nullptr;
  for (int64_t row = first_row; row < end_row; ++row) {
    const Span span = visible(row, 0, kSegment);
    float* scores = scratch.scores + row * kSegment;
    if (!is_plain) {
      const Span lanes{span.begin / kLogicalLanes * kLogicalLanes, span.end};
      transform_scores(c.params, rows[row].head, begin - (rows[row].limit - 1), lanes, scores);
    }
    softmax_numerators(scores, span, is_plain ? c.params.scale : 1.0f, &state.max[row], &state.norm[row]);
    std::memset(state.values + row * padded, 0, static_cast<size_t>(padded) * sizeof(float));
  }
  for (int64_t at = first_chunk; at < num_positions; at += kSegmentChunk) {
    const float* v[kSegmentChunk];
    value_rows(c, item, begin + at, std::min(kSegmentChunk, num_positions - at), scratch.v_gather, v);
    for_row_tiles(end_row - first_row, [&](int64_t tile, auto tile_rows) HWY_ATTR {
      constexpr int kRows = decltype(tile_rows)::value;
      const int64_t row = first_row + tile;
      if (!overlaps(row, row + kRows - 1, at)) return;
      const float* p[kRows];
      Span spans[kRows];
      for (int r = 0; r < kRows; ++r) {
        p[r] = scratch.scores + (row + r) * kSegment + at;
        spans[r] = visible(row + r, at, kSegmentChunk);
      }
      add_chunk<kRows>(p, spans, v, padded, state.values + row * padded);
    });
  }
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
                    const AttentionState& state) {
  HWY_DYNAMIC_DISPATCH(attend_segment_target)(c, item, segment, scratch, state);
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
