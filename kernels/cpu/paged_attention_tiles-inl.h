// The register tiles of paged_attention over keys and values in the forms that they are stored in, and what widens a
// chunk of them to fp32 for many rows. Compiled once for each SIMD target; include after hwy/foreach_target.h.
//
// 1. A score is one chain of multiply-adds over the channels, in order; a value's sum one chain over positions, in
//    order, whatever the tile's shape, and whether the chunk was widened first.
// 2. An int8 or fp8 tile computes with the bytes' numbers; their scales belong to the score, and to the weight of the value.

#if defined(LLMB_KERNELS_CPU_PAGED_ATTENTION_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LLMB_KERNELS_CPU_PAGED_ATTENTION_TILES_INL_H_
#undef LLMB_KERNELS_CPU_PAGED_ATTENTION_TILES_INL_H_
#else
#define LLMB_KERNELS_CPU_PAGED_ATTENTION_TILES_INL_H_
#endif

#include "base/float_formats.h"
#include "kernels/cpu/paged_attention_fetch.h"
#include "kernels/cpu/paged_attention_segment.h"
#include "kernels/cpu/paged_attention_shapes-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

constexpr int kGroups = static_cast<int>(kSegmentChunk) / kLogicalLanes;  // of 16 positions in a chunk

// ---- formats: Word is what one lane loads; kTerms: neighbouring terms of a sum in a word ------------------------

template <int kTerm, class DW>
HWY_INLINE hn::Vec<hn::RebindToFloat<DW>> widen_pair(DW, hn::Vec<DW> words) {
  const hn::RebindToFloat<DW> d;
  if constexpr (kTerm == 0) return hn::BitCast(d, hn::ShiftLeft<16>(words));
  else return hn::BitCast(d, hn::And(words, hn::Set(DW(), 0xffff0000u)));
}

struct Float32 {
  using Word = float;
  static constexpr int kTerms = 1;
  template <int kTerm>
  static HWY_INLINE V load(const Word* at) {
    return hn::LoadU(D(), at);
  }
};

struct BFloat16 {
  using Word = uint32_t;
  static constexpr int kTerms = 2;
  template <int kTerm>
  static HWY_INLINE V load(const Word* at) {
    return widen_pair<kTerm>(DU(), hn::LoadU(DU(), at));
  }
};

struct Int8 {
  using Word = int8_t;
  static constexpr int kTerms = 1;
  template <int kTerm>
  static HWY_INLINE V load(const Word* at) {
    return hn::ConvertTo(D(), hn::PromoteTo(DI(), hn::LoadU(hn::Rebind<int8_t, D>(), at)));
  }
};

struct Fp8 {
  using Word = uint8_t;
  static constexpr int kTerms = 1;
  // The bits of fp32 but for the exponent's bias.
  template <class DF, class Bytes>
  static HWY_INLINE hn::Vec<DF> widen(DF d, Bytes bytes) {
    const hn::RebindToSigned<DF> di;
    const hn::Rebind<int8_t, DF> d8;
    const auto words = hn::ShiftLeft<20>(hn::PromoteTo(di, hn::BitCast(d8, bytes)));
    return hn::Mul(hn::BitCast(d, hn::And(words, hn::Set(di, static_cast<int32_t>(0x87f00000u)))), hn::Set(d, 0x1p120f));
  }
  template <int kTerm>
  static HWY_INLINE V load(const Word* at) {
    return widen(D(), hn::LoadU(hn::Rebind<uint8_t, D>(), at));
  }
};

// ---- a chunk of the cache ---------------------------------------------------------------------------------------

// Where the keys of 16 consecutive positions start, for each 16 of a chunk; the next kTerms channels are `stride` words
// further on.
template <class Format>
struct KeyChunk {
  const typename Format::Word* group[kGroups];
  int64_t stride;
};

// Calls f(first position within [0, n), positions, block, offset in the block) for each run of a chunk's positions that
// lies in one block.
template <class F>
HWY_INLINE void for_block_runs(const AttentionCall& c, const AttentionItem& item, int64_t position, int64_t n,
                               const F& f) {
  const int64_t bs = c.kv.block_size;
  const BlockId* block = c.batch.block_ids + c.batch.block_start[item.seq] + position / bs;
  for (int64_t i = 0, offset = position % bs; i < n; offset = 0, ++block) {
    const int64_t run = std::min(n - i, bs - offset);
    f(i, run, int64_t{*block}, offset);
    i += run;
  }
}

// REQUIRES: c.is_regular().
template <class Format>
HWY_INLINE KeyChunk<Format> key_chunk(const AttentionCall& c, const AttentionItem& item, int64_t position, int64_t n) {
  KeyChunk<Format> chunk;
  chunk.stride = c.kv.block_size;
  for_block_runs(c, item, position, n, [&](int64_t i, int64_t run, int64_t block, int64_t offset) HWY_ATTR {
    const auto* keys = reinterpret_cast<const typename Format::Word*>(c.kv.keys(block, item.kv_head)) + offset;
    for (int64_t p = 0; p < run; p += kLogicalLanes) chunk.group[(i + p) / kLogicalLanes] = keys + p;
  });
  return chunk;
}

// rows[i]: the values of position i * kTerms behind `position`, and of those that share its words. REQUIRES:
// c.is_regular().
template <class Format>
HWY_INLINE void find_value_rows(const AttentionCall& c, const AttentionItem& item, int64_t position, int64_t n,
                                const typename Format::Word** rows) {
  constexpr int kTerms = Format::kTerms;
  for_block_runs(c, item, position, n, [&](int64_t i, int64_t run, int64_t block, int64_t offset) HWY_ATTR {
    const auto* values = reinterpret_cast<const typename Format::Word*>(c.kv.values(block, item.kv_head));
    for (int64_t p = 0; p < run; p += kTerms) rows[(i + p) / kTerms] = values + (offset + p) / kTerms * c.kv.head_dim;
  });
}

// ---- widening ---------------------------------------------------------------------------------------------------

// Words [begin, n) of two rows of a sum's terms to fp32, as many as go in whole vectors of D; how many that makes.
template <class Format, class D>
HWY_INLINE int64_t widen_vectors(D d, const typename Format::Word* from, int64_t begin, int64_t n, float* first,
                                 float* second) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = begin;
  for (; i + lanes <= n; i += lanes) {
    if constexpr (std::is_same_v<Format, BFloat16>) {
      const auto words = hn::LoadU(du, from + i);
      hn::StoreU(widen_pair<0>(du, words), d, first + i);
      hn::StoreU(widen_pair<1>(du, words), d, second + i);
    } else if constexpr (std::is_same_v<Format, Int8>) {
      const hn::Rebind<int8_t, D> d8;
      hn::StoreU(hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, from + i))), d, first + i);
    } else if constexpr (std::is_same_v<Format, Fp8>) {
      hn::StoreU(Fp8::widen(d, hn::LoadU(hn::Rebind<uint8_t, D>(), from + i)), d, first + i);
    } else {
      hn::StoreU(hn::LoadU(d, from + i), d, first + i);
    }
  }
  return i;
}

// All of them; n a multiple of 8.
template <class Format>
HWY_INLINE void widen_words(const typename Format::Word* from, int64_t n, float* first, float* second) {
  const int64_t done = widen_vectors<Format>(D(), from, 0, n, first, second);
  widen_vectors<Format>(hn::CappedTag<float, 8>(), from, done, n, first, second);
}

// One key or value as the tiles take it.
HWY_INLINE float element(const AttentionCall& c, const uint8_t* data, int64_t row, int64_t column, int64_t width) {
  const int64_t i = row * width + column;
  if (c.kv.dtype == DType::kF32) return reinterpret_cast<const float*>(data)[i];
  if (c.kv.dtype == DType::kF8) return fp8_e4m3_to_f32(data[i]);
  if (c.kv.dtype == DType::kI8) return static_cast<float>(reinterpret_cast<const int8_t*>(data)[i]);
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(data);
  return bf16_to_f32(halves[(row / 2 * width + column) * 2 + row % 2]);
}

// The keys of positions [position, position + n) to `to` [head_dim, kSegmentChunk].
template <class Format>
HWY_INLINE void widen_keys(const AttentionCall& c, const AttentionItem& item, int64_t position, int64_t n, float* to) {
  constexpr int kTerms = Format::kTerms;
  const int64_t bs = c.kv.block_size, dim = c.kv.head_dim;
  for_block_runs(c, item, position, n, [&](int64_t i, int64_t run, int64_t block, int64_t offset) HWY_ATTR {
    const uint8_t* keys = c.kv.keys(block, item.kv_head);
    if (bs % 8 != 0 || dim % kTerms != 0) {
      for (int64_t channel = 0; channel < dim; ++channel)
        for (int64_t p = 0; p < run; ++p)
          to[channel * kSegmentChunk + i + p] = element(c, keys, channel, offset + p, bs);
      return;
    }
    const int64_t whole = ceil_div(run, 8) * 8;  // within the block, and within the chunk
    const auto* words = reinterpret_cast<const typename Format::Word*>(keys) + offset;
    for (int64_t channel = 0; channel < dim; channel += kTerms, words += bs) {
      float* first = to + channel * kSegmentChunk + i;
      widen_words<Format>(words, whole, first, first + kSegmentChunk);
    }
  });
}

// The values of positions [position, position + n) to `to` [kSegmentChunk, padded_dim], zeros behind head_dim.
template <class Format>
HWY_INLINE void widen_values(const AttentionCall& c, const AttentionItem& item, int64_t position, int64_t n,
                             float* to) {
  constexpr int kTerms = Format::kTerms;
  const int64_t bs = c.kv.block_size, dim = c.kv.head_dim, padded = c.padded_dim();
  for_block_runs(c, item, position, n, [&](int64_t i, int64_t run, int64_t block, int64_t offset) HWY_ATTR {
    const uint8_t* values = c.kv.values(block, item.kv_head);
    if (dim % 8 != 0 || bs % kTerms != 0 || padded != dim) {
      for (int64_t p = 0; p < run; ++p) {
        float* row = to + (i + p) * padded;
        for (int64_t channel = 0; channel < dim; ++channel) row[channel] = element(c, values, offset + p, channel, dim);
        for (int64_t channel = dim; channel < padded; ++channel) row[channel] = 0;
      }
      return;
    }
    const auto* words = reinterpret_cast<const typename Format::Word*>(values) + offset / kTerms * dim;
    for (int64_t p = 0; p < run; p += kTerms, words += dim) {
      float* first = to + (i + p) * padded;
      widen_words<Format>(words, dim, first, first + padded);
    }
  });
}

// The values of the first n positions of widened keys, which are their last channels, to `to`
// [kSegmentChunk, padded_dim], zeros behind them. By squares, so that both sides stay in the first-level cache.
HWY_INLINE void latent_values(const AttentionCall& c, const float* keys, int64_t n, float* to) {
  constexpr int64_t kSquare = 16;
  const int64_t dim = c.kv.latent_dim, padded = c.padded_dim();
  const float* const from = keys + (c.kv.head_dim - dim) * kSegmentChunk;
  for (int64_t first = 0; first < dim; first += kSquare) {
    const int64_t end = std::min(dim, first + kSquare);
    for (int64_t p = 0; p < n; ++p)
      for (int64_t channel = first; channel < end; ++channel)
        to[p * padded + channel] = from[channel * kSegmentChunk + p];
  }
  for (int64_t p = 0; p < n; ++p)
    for (int64_t channel = dim; channel < padded; ++channel) to[p * padded + channel] = 0;
}

HWY_INLINE KeyChunk<Float32> widened_keys(const float* from) {
  KeyChunk<Float32> chunk;
  chunk.stride = kSegmentChunk;
  for (int64_t g = 0; g < kGroups; ++g) chunk.group[g] = from + g * kLogicalLanes;
  return chunk;
}

// ---- tiles ------------------------------------------------------------------------------------------------------

// acc += the term kTerm of a word: of each row of `a`, and at `offset` from each vector of b.
template <class Format, int kTerm, int kRows, int kVecs>
HWY_INLINE void add_term(const TileRows<kRows>& a, int column, const typename Format::Word* const* b, int64_t offset,
                         V (&acc)[kRows * kVecs]) {
  if constexpr (kLanes == 8 && kRows < kVecs) {  // the fewer factors wait in registers
    V av[kRows];
    LLMB_UNROLL for (int r = 0; r < kRows; ++r) av[r] = a.broadcast(r, column);
    LLMB_UNROLL for (int c = 0; c < kVecs; ++c) {
      const V bv = Format::template load<kTerm>(b[c] + offset);
      LLMB_UNROLL for (int r = 0; r < kRows; ++r) acc[r * kVecs + c] = hn::MulAdd(av[r], bv, acc[r * kVecs + c]);
    }
    return;
  }
  V bv[kVecs];
  LLMB_UNROLL for (int c = 0; c < kVecs; ++c) bv[c] = Format::template load<kTerm>(b[c] + offset);
  LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
    const V av = a.broadcast(r, column);
    LLMB_UNROLL for (int c = 0; c < kVecs; ++c) acc[r * kVecs + c] = hn::MulAdd(av, bv[c], acc[r * kVecs + c]);
  }
}

// Dot products of kRows queries, [kRows][dim], with the keys of kVecs vectors of positions, from the chunk's group
// `group` on.
template <class Format, int kRows, int kVecs, class Fetch>
HWY_INLINE void score_tile(const float* q, int64_t dim, const KeyChunk<Format>& keys, int64_t group, float* scores,
                           Fetch& fetch) {
  constexpr int kTerms = Format::kTerms;
  const typename Format::Word* b[kVecs];
  LLMB_UNROLL for (int v = 0; v < kVecs; ++v) b[v] = keys.group[group + v / kParts] + v % kParts * kLanes;
  TileRows<kRows> a(q, dim);
  V acc[kRows * kVecs];
  LLMB_UNROLL for (int i = 0; i < kRows * kVecs; ++i) acc[i] = hn::Zero(D());
  for (int64_t k = 0, offset = 0; k < dim; k += kTerms, offset += keys.stride, a.advance(kTerms)) {
    add_term<Format, 0, kRows, kVecs>(a, 0, b, offset, acc);
    if constexpr (kTerms == 2) add_term<Format, 1, kRows, kVecs>(a, 1, b, offset, acc);
    fetch.step();
  }
  float* to = scores + group * kLogicalLanes;
  LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
    LLMB_UNROLL for (int v = 0; v < kVecs; ++v) hn::StoreU(acc[r * kVecs + v], D(), to + r * kSegment + v * kLanes);
  }
}

// Groups [begin, end) of a chunk.
template <class Format, int kRows, class Fetch>
HWY_INLINE void score_groups(const float* q, int64_t dim, const KeyChunk<Format>& keys, int64_t begin, int64_t end,
                             float* scores, Fetch& fetch) {
  constexpr int kColumns = attention_columns<Format>(kRows);
  if constexpr (kColumns == kGroups * kLogicalLanes) {
    if (end - begin == kGroups) return score_tile<Format, kRows, kGroups * kParts>(q, dim, keys, begin, scores, fetch);
  }
  if constexpr (kColumns >= 2 * kLogicalLanes) {
    for (; begin + 2 <= end; begin += 2) score_tile<Format, kRows, 2 * kParts>(q, dim, keys, begin, scores, fetch);
  }
  for (; begin < end; ++begin) score_tile<Format, kRows, kParts>(q, dim, keys, begin, scores, fetch);
}

// values[r] += p[r][begin … end) · values of these positions, over kVecs vectors of columns; p is [kRows][kSegment],
// and v has the values, from the same position on.
template <class Format, int kRows, int kVecs, class Fetch>
HWY_INLINE void value_tile(const float* p, int64_t begin, int64_t end, const typename Format::Word* const* v,
                           int64_t column, int64_t dim, float* values, Fetch& fetch) {
  const D d;
  V acc[kRows * kVecs];
  LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
    LLMB_UNROLL for (int i = 0; i < kVecs; ++i) acc[r * kVecs + i] =
        hn::LoadU(d, values + r * dim + column + i * kLanes);
  }
  TileRows<kRows> a(p + begin, kSegment);
  const auto add = [&](int64_t position, auto term, int at) HWY_ATTR {
    constexpr int kTerm = decltype(term)::value;
    const typename Format::Word* b[kVecs];
    LLMB_UNROLL for (int i = 0; i < kVecs; ++i) b[i] = v[position / Format::kTerms] + i * kLanes;
    add_term<Format, kTerm, kRows, kVecs>(a, at, b, column, acc);
  };
  using First = std::integral_constant<int, 0>;
  using Second = std::integral_constant<int, 1>;
  int64_t position = begin;
  if constexpr (Format::kTerms == 2) {
    if (position % 2 == 1 && position < end) {
      add(position++, Second(), 0);
      a.advance(1);
    }
    for (; position + 2 <= end; position += 2, a.advance(2)) {
      add(position, First(), 0);
      add(position + 1, Second(), 1);
      fetch.step();
    }
  }
  for (; position < end; ++position, a.advance(1)) {
    add(position, First(), 0);
    fetch.step();
  }
  LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
    LLMB_UNROLL for (int i = 0; i < kVecs; ++i)
        hn::StoreU(acc[r * kVecs + i], d, values + r * dim + column + i * kLanes);
  }
}

template <class Format, int kRows, class Fetch>
HWY_INLINE void value_columns(const float* p, int64_t begin, int64_t end, const typename Format::Word* const* v,
                              int64_t dim, float* values, Fetch& fetch) {
  constexpr int kColumns = attention_columns<Format>(kRows);
  int64_t column = 0;
  for (; column + kColumns <= dim; column += kColumns)
    value_tile<Format, kRows, kColumns / kLanes>(p, begin, end, v, column, dim, values, fetch);
  if constexpr (kColumns > 2 * kLogicalLanes && kLanes < kLogicalLanes) {
    for (; column + 2 * kLogicalLanes <= dim; column += 2 * kLogicalLanes)
      value_tile<Format, kRows, 2 * kParts>(p, begin, end, v, column, dim, values, fetch);
  }
  if constexpr (kColumns > kLogicalLanes) {
    for (; column < dim; column += kLogicalLanes)
      value_tile<Format, kRows, kParts>(p, begin, end, v, column, dim, values, fetch);
  }
}

// Positions counted from the begin of a chunk or a segment.
struct Span {
  int64_t begin, end;
};

// One row of a tile. Not inline, as a tile may call it for each of its rows, and without a fetch, which a call would
// take out of the tile's registers: rows differ in a few positions at the ends of what they see.
template <class Format>
HWY_NOINLINE void add_values_to_row(const float* p, Span span, const typename Format::Word* const* v, int64_t dim,
                                    float* values) {
  NoFetch none;
  value_columns<Format, 1>(p, span.begin, span.end, v, dim, values, none);
}

// Adds values to kRows rows; row r sees those of spans[r], which do not fall, or all `size` of them where spans is null.
// For each row its positions come in order, so that its sum does not depend on the rows beside it.
template <class Format, int kRows, class Fetch>
HWY_INLINE void add_values(const float* p, const Span* spans, int64_t size, const typename Format::Word* const* v,
                           int64_t dim, float* values, Fetch& fetch) {
  const auto one = [&](int r, int64_t begin, int64_t end) HWY_ATTR {
    if (begin < end) add_values_to_row<Format>(p + r * kSegment, {begin, end}, v, dim, values + r * dim);
  };
  Span shared{0, size};
  if (spans != nullptr) {
    shared = {spans[kRows - 1].begin, spans[0].end};
    if (shared.begin >= shared.end) {
      for (int r = 0; r < kRows; ++r) one(r, spans[r].begin, spans[r].end);
      return;
    }
    for (int r = 0; r < kRows - 1; ++r) one(r, spans[r].begin, shared.begin);  // later tokens begin a little later
  }
  value_columns<Format, kRows>(p, shared.begin, shared.end, v, dim, values, fetch);
  if (spans != nullptr)
    for (int r = 1; r < kRows; ++r) one(r, shared.end, spans[r].end);  // and see a little more
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#endif
