// Products of blocks of few bits (linear_blocks_int8.cpp) by AVX2. Its multiplications of unsigned by signed bytes add
// pairs in 16 bits, so that as many words of codes as fit there are summed before the sums are widened: eight of four
// bits, four of five, two of six. Of codes of eight bits not even one pair fits: their magnitudes are multiplied, and
// the numbers of x take their signs. Included by linear_blocks_int8.cpp, once for each SIMD target.

#if defined(LLMB_KERNELS_CPU_BLOCK_INT8_AVX2_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LLMB_KERNELS_CPU_BLOCK_INT8_AVX2_INL_H_
#undef LLMB_KERNELS_CPU_BLOCK_INT8_AVX2_INL_H_
#else
#define LLMB_KERNELS_CPU_BLOCK_INT8_AVX2_INL_H_
#endif

#include "kernels/cpu/block_row.h"
#include "kernels/cpu/block_stretch-inl.h"
#include "kernels/cpu/linear_task.h"

#if HWY_TARGET == HWY_AVX2

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

// Words of codes whose pairs of products, of numbers up to 127, fit 16 bits.
constexpr int words_in_16_bits(int code_bits, int part_words) {
  return std::min(part_words, 32767 / (2 * 127 * ((1 << code_bits) - 1)));
}

// Vectors of columns of a tile.
constexpr int byte_vecs(int rows, int code_bits) { return code_bits == 8 && rows > 4 ? 1 : 2; }

HWY_INLINE __m256i four_numbers(const uint8_t* x) {
  int32_t four;
  std::memcpy(&four, x, 4);
  return _mm256_set1_epi32(four);
}
// The compiler would sum the products of all words at last, and so keep them all: more than there are registers.
HWY_INLINE __m256i add_pairs(__m256i sums, __m256i products) {
  sums = _mm256_add_epi16(sums, products);
  asm("" : "+x"(sums));
  return sums;
}
HWY_INLINE __m256i add_wide(__m256i sums, __m256i products) {
  sums = _mm256_add_epi32(sums, products);
  asm("" : "+x"(sums));
  return sums;
}
// *pairs: with the products of a word of codes by x, added where it is not the first one.
HWY_INLINE void multiply_word(__m256i codes, __m256i x, bool is_first, __m256i* pairs) {
  const __m256i products = _mm256_maddubs_epi16(codes, x);
  *pairs = is_first ? products : add_pairs(*pairs, products);
}
HWY_INLINE __m256i widened(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

// A word of codes of eight bits with an offset of 128, without it.
struct SignedCodes {
  __m256i codes, magnitudes;
  HWY_INLINE explicit SignedCodes(__m256i with_offset)
      : codes(_mm256_xor_si256(with_offset, _mm256_set1_epi8(-128))), magnitudes(_mm256_abs_epi8(codes)) {}
  // The products by x, in 32 bits.
  HWY_INLINE __m256i times(__m256i x) const {
    return widened(_mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(x, codes)));
  }
};

// Sums of one part, kVecs vectors of columns: what they begin with, and the products of each row. x: the rows' numbers
// of the part. A turn of `ahead` a word.
template <int kRows, int kVecs, int kBits, int kPartWords>
HWY_INLINE void part_sums(const uint32_t (*codes)[kColumns], const uint8_t* x, int64_t stride, const RowStretch* rows,
                          int part, StretchFetch& ahead, __m256i* sums) {
  constexpr int kWords = words_in_16_bits(kBits, kPartWords);
  LLMB_UNROLL for (int i = 0; i < kRows * kVecs; ++i) sums[i] = _mm256_set1_epi32(rows[i / kVecs].start[part]);
  LLMB_UNROLL for (int first = 0; first < kPartWords; first += kWords) {
    __m256i pairs[kRows * kVecs];
    LLMB_UNROLL for (int word = first; word < first + kWords; ++word) {
      ahead.turn();
      __m256i b[kVecs];
      LLMB_UNROLL for (int c = 0; c < kVecs; ++c) b[c] =
          _mm256_load_si256(reinterpret_cast<const __m256i*>(codes[word]) + c);
      LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
        const __m256i four = four_numbers(x + r * stride + 4 * word);
        LLMB_UNROLL for (int c = 0; c < kVecs; ++c) multiply_word(b[c], four, word == first, &pairs[r * kVecs + c]);
      }
    }
    LLMB_UNROLL for (int i = 0; i < kRows * kVecs; ++i) sums[i] = _mm256_add_epi32(sums[i], widened(pairs[i]));
  }
}

// As part_sums, for codes of eight bits with an offset of 128, without it.
template <int kRows, int kVecs>
HWY_INLINE void signed_part_sums(const uint32_t (*codes)[kColumns], const uint8_t* x, int64_t stride,
                                 StretchFetch& ahead, __m256i* sums) {
  LLMB_UNROLL for (int i = 0; i < kRows * kVecs; ++i) sums[i] = _mm256_setzero_si256();
  LLMB_UNROLL for (int word = 0; word < 8; ++word) {
    ahead.turn();
    const auto* const b = reinterpret_cast<const __m256i*>(codes[word]);
    const SignedCodes first(_mm256_load_si256(b)), last(_mm256_load_si256(b + kVecs - 1));
    LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
      const __m256i four = four_numbers(x + r * stride + 4 * word);
      __m256i* const to = sums + r * kVecs;
      to[0] = add_wide(to[0], first.times(four));
      if constexpr (kVecs == 2) to[1] = add_wide(to[1], last.times(four));
    }
  }
}

// Adds a part's products to the sums of kVecs vectors of columns, [kRows][kStride].
template <int kRows, int kVecs, bool kIsLarge, bool kHasMinima, int kStride>
HWY_INLINE void add_part(const Stretch& w, const RowStretch* rows, int part, int64_t column, const __m256i* dots,
                         float* sums) {
  const float *const scales = &w.scales[part][column], *const minima = &w.minima[part][column];
  LLMB_UNROLL for (int r = 0; r < kRows; ++r) {
    LLMB_UNROLL for (int c = 0; c < kVecs * 8; c += 8) {
      float* const to = sums + r * kStride + c;
      __m256 s = _mm256_cvtepi32_ps(dots[r * kVecs + c / 8]);
      if constexpr (!kIsLarge) s = _mm256_mul_ps(s, _mm256_set1_ps(rows[r].scales[part]));
      s = _mm256_fmadd_ps(s, _mm256_load_ps(scales + c), _mm256_load_ps(to));
      if constexpr (kHasMinima) s = _mm256_fmadd_ps(_mm256_set1_ps(rows[r].sums[part]), _mm256_load_ps(minima + c), s);
      _mm256_store_ps(to, s);
    }
  }
}

template <int kRows, int kBits, int kPartWords, bool kIsLarge>
HWY_NOINLINE void byte_rows(const Stretch& w, const TileOfX& x, int64_t begin, int64_t end, StretchFetch* fetch,
                            float* sums) {
  StretchFetch ahead = *fetch;
  constexpr int kVecs = byte_vecs(kRows, kBits), kWide = kVecs * 8, kStride = kIsLarge ? kWide : kColumns;
  HWY_ALIGN float block[kIsLarge ? kRows * kWide : 1];
  for (int64_t column = begin; column < end; column += kWide) {
    if (kIsLarge) std::memset(block, 0, sizeof(block));
    float* const at = kIsLarge ? block : sums + column;
    for (int part = 0; part < w.num_parts; ++part) {
      __m256i dots[kRows * kVecs];
      const int word = part * kPartWords;
      const auto* const codes = reinterpret_cast<const uint32_t(*)[kColumns]>(&w.codes[word][column]);
      const uint8_t* const numbers = x.numbers + 4 * word;
      if constexpr (kBits == 8) signed_part_sums<kRows, kVecs>(codes, numbers, x.stride, ahead, dots);
      else part_sums<kRows, kVecs, kBits, kPartWords>(codes, numbers, x.stride, x.rows, part, ahead, dots);
      if (w.has_minima) add_part<kRows, kVecs, kIsLarge, true, kStride>(w, x.rows, part, column, dots, at);
      else add_part<kRows, kVecs, kIsLarge, false, kStride>(w, x.rows, part, column, dots, at);
    }
    if constexpr (kIsLarge) {
      LLMB_UNROLL for (int i = 0; i < kRows * kVecs; ++i) {
        float* const to = sums + i / kVecs * kColumns + column + i % kVecs * 8;
        const __m256 scale = _mm256_set1_ps(x.rows[i / kVecs].scales[0]);
        _mm256_store_ps(to, _mm256_fmadd_ps(_mm256_load_ps(block + i * 8), scale, _mm256_load_ps(to)));
      }
    }
  }
  *fetch = ahead;
}

// A tile of rows by the columns of a stretch.
template <int kRows, int kBits, int kPartWords>
HWY_INLINE void byte_tile(const Stretch& w, const TileOfX& x, int64_t begin, int64_t end, StretchFetch* fetch,
                          float* sums) {
  if (w.is_large) byte_rows<kRows, kBits, kPartWords, true>(w, x, begin, end, fetch, sums);
  else byte_rows<kRows, kBits, kPartWords, false>(w, x, begin, end, fetch, sums);
}
template <int kRows>
HWY_INLINE void byte_tile(const Stretch& w, const TileOfX& x, int64_t begin, int64_t end, StretchFetch* fetch,
                          float* sums) {
  if (w.code_bits == 8) byte_tile<kRows, 8, 8>(w, x, begin, end, fetch, sums);
  else if (w.code_bits == 6) byte_rows<kRows, 6, 4, true>(w, x, begin, end, fetch, sums);
  else if (w.code_bits == 5) byte_tile<kRows, 5, 8>(w, x, begin, end, fetch, sums);
  else if (w.part_words == 4) byte_rows<kRows, 4, 4, true>(w, x, begin, end, fetch, sums);
  else byte_tile<kRows, 4, 8>(w, x, begin, end, fetch, sums);
}

// Sums of a lone row's products with a part of kVecs vectors of columns.
template <class F, int kVecs>
class RowDots {
 public:
  HWY_INLINE explicit RowDots(int32_t start) { LLMB_UNROLL for (VI& sum : sums_) sum.raw = _mm256_set1_epi32(start); }
  // Word `word` of the part: its codes in vector v by four numbers of x.
  HWY_INLINE void add(int word, int v, U codes, const uint8_t* x) {
    const __m256i four = four_numbers(x);
    if constexpr (kIsWide) {
      sums_[v].raw = _mm256_add_epi32(sums_[v].raw, SignedCodes(codes.raw).times(four));
    } else {
      multiply_word(codes.raw, four, word % kWords == 0, &pairs_[v]);
      if ((word + 1) % kWords == 0) sums_[v].raw = _mm256_add_epi32(sums_[v].raw, widened(pairs_[v]));
    }
  }
  HWY_INLINE VI sum(int v) const { return sums_[v]; }

  // Whether codes of eight bits are multiplied as signed ones.
  static constexpr bool kIsWide = byte_bits<F>() == 8;

 private:
  static constexpr int kWords = kIsWide ? 1 : words_in_16_bits(byte_bits<F>(), F::kIsByHalves ? 4 : 8);

  VI sums_[kVecs];
  __m256i pairs_[kVecs];
};

// The scalars of a part of a row of x: what sums begin with, its numbers' sum, of small blocks times their scale, which
// is the second, else 1.
struct PartOfX {
  int32_t start;
  float sum, scale;
};

// 32 k of a lone row by kVecs vectors of columns. block: their sums in the block; ahead: what is asked for meanwhile,
// evenly, as many requests at once would wait for each other and the products for them. Not inlined, as the compiler
// would keep words that the next run reads, too, and so run out of registers.
template <class F, int kVecs>
HWY_NOINLINE void row_run(const BlockSection& section, const uint8_t* data, int64_t run, int64_t column,
                          const uint8_t* ahead, const uint8_t* x, const PartOfX* parts, float* block) {
  constexpr int kFetched = kVecs * kLanes * (8 * F::kCodeBits + (F::kIsByHalves ? 5 : 4)) / 16;  // bytes a word
  constexpr int kHalves = F::kIsByHalves ? 2 : 1, kPartWords = 8 / kHalves;
  const SectionReader s(section, data, column);
  LLMB_UNROLL for (int half = 0; half < kHalves; ++half) {
    RowDots<F, kVecs> dots(parts[half].start);
    LLMB_UNROLL for (int i = 0; i < kPartWords; ++i) {
      const int word = half * kPartWords + i;
      LLMB_UNROLL for (int at = ceil_div(word * kFetched, 64) * 64; at < (word + 1) * kFetched; at += 64)
          __builtin_prefetch(ahead + at, 0, 2);
      LLMB_UNROLL for (int v = 0; v < kVecs; ++v)
          dots.add(i, v, as_bytes<F>(F::codes(s.from(v * kLanes), run, word)), x + 4 * word);
    }
    LLMB_UNROLL for (int v = 0; v < kVecs; ++v) {
      const SectionReader from = s.from(v * kLanes);
      V sum = hn::ConvertTo(D(), dots.sum(v));
      if constexpr (F::kRuns == 1) sum = hn::Mul(sum, hn::Set(D(), parts[half].scale));
      sum = hn::MulAdd(sum, F::scale(from, run, half), hn::Load(D(), block + v * kLanes));
      if constexpr (F::kHasMinimum) {
        const V minimum = F::minimum(from, run, half), t = hn::Set(D(), parts[half].sum);
        sum = F::kAddsMinimum ? hn::MulAdd(t, minimum, sum) : hn::NegMulAdd(t, minimum, sum);
      }
      hn::Store(sum, D(), block + v * kLanes);
    }
  }
}

// A lone row: x are its numbers and what stands behind them.
template <class F>
HWY_NOINLINE void multiply_row(const LinearTask& t, const uint8_t* x, float* sums) {
  constexpr int kVecs = 4, kHalves = F::kIsByHalves ? 2 : 1;
  constexpr bool kIsLarge = F::kRuns != 1;
  const BlockSection& section = block_section(F::kBlocks);
  const int64_t num_k = t.weight->in_features();
  const BlockRow at(num_k, kRun * F::kRuns);
  const auto* const scales = reinterpret_cast<const float*>(x + at.scales);
  const auto* const sums_of_x = reinterpret_cast<const int32_t*>(x + (kHalves == 2 ? at.sums16 : at.sums32));
  const uint8_t* data = t.weight->panel(t.panel);
  const int64_t ahead_bytes = fetch_bytes_ahead(section, F::kRuns);
  HWY_ALIGN float block_sums[kColumns];
  float* const to = kIsLarge ? block_sums : sums;
  for (int64_t run = 0; run < num_k / kRun; data += section.size()) {
    if (kIsLarge) std::memset(block_sums, 0, sizeof(block_sums));
    for (int64_t i = 0; i < F::kRuns; ++i, ++run) {
      const uint8_t* const ahead = data + ahead_bytes + i * section.size() / F::kRuns;
      const int64_t column_share = section.size() / F::kRuns / kColumns;
      PartOfX parts[kHalves];
      for (int half = 0; half < kHalves; ++half) {
        const int32_t sum = sums_of_x[run * kHalves + half];
        const float scale = kIsLarge ? 1 : scales[run];
        parts[half] = {RowDots<F, 1>::kIsWide ? 0 : -offset_of<F>() * sum, static_cast<float>(sum) * scale, scale};
      }
      int64_t column = t.column_begin;
      for (; column + kVecs * kLanes <= t.column_end; column += kVecs * kLanes)
        row_run<F, kVecs>(section, data, i, column, ahead + column * column_share, x + run * kRun, parts, to + column);
      for (; column < t.column_end; column += kLanes)
        row_run<F, 1>(section, data, i, column, ahead + column * column_share, x + run * kRun, parts, to + column);
    }
    if (!kIsLarge) continue;
    const V scale = hn::Set(D(), scales[run / F::kRuns - 1]);
    for (int64_t c = t.column_begin; c < t.column_end; c += kLanes)
      hn::Store(hn::MulAdd(hn::Load(D(), block_sums + c), scale, hn::Load(D(), sums + c)), D(), sums + c);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#endif  // HWY_AVX2
#endif
