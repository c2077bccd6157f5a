// A lone row over blocks of few bits, rounded to int8 (linear_blocks_int8.cpp), on x86 with AVX2 or AVX-512's VNNI: it
// meets codes where they are decoded, in registers. Included by linear_blocks_int8.cpp, once for each SIMD target.

#if defined(LLMB_KERNELS_CPU_BLOCK_INT8_ROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LLMB_KERNELS_CPU_BLOCK_INT8_ROW_INL_H_
#undef LLMB_KERNELS_CPU_BLOCK_INT8_ROW_INL_H_
#else
#define LLMB_KERNELS_CPU_BLOCK_INT8_ROW_INL_H_
#endif

#include "kernels/cpu/block_int8_avx2-inl.h"
#include "kernels/cpu/block_row.h"
#include "kernels/cpu/block_stretch-inl.h"

#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX2
#define LLMB_ROW_DOTS
#else
#define LLMB_ROW_DOTS __attribute__((target("avx512vnni")))

// Sums of a lone row's products with a part of kVecs vectors of columns.
template <class F, int kVecs>
class RowDots {
 public:
  LLMB_ROW_DOTS HWY_INLINE explicit RowDots(int32_t start) {
    LLMB_UNROLL for (VI& sum : sums_) sum.raw = _mm512_set1_epi32(start);
  }
  // A word of the part: its codes in vector v by four numbers of x.
  LLMB_ROW_DOTS HWY_INLINE void add(int, int v, U codes, const uint8_t* x) {
    int32_t four;
    std::memcpy(&four, x, 4);
    sums_[v].raw = _mm512_dpbusd_epi32(sums_[v].raw, codes.raw, _mm512_set1_epi32(four));
  }
  LLMB_ROW_DOTS HWY_INLINE VI sum(int v) const { return sums_[v]; }

  static constexpr bool kIsWide = false;

 private:
  VI sums_[kVecs];
};
#endif

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
LLMB_ROW_DOTS HWY_NOINLINE void row_run(const BlockSection& section, const uint8_t* data, int64_t run, int64_t column,
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

// x: the row's numbers and what stands behind them.
template <class F>
HWY_NOINLINE void multiply_row(const LinearTask& t, BlockFormat format, const uint8_t* x, float* sums) {
  constexpr int kVecs = 4, kHalves = F::kIsByHalves ? 2 : 1;
  constexpr bool kIsLarge = F::kRuns != 1;
  const BlockSection& section = block_section(format);
  const int64_t num_k = t.weight->in_features();
  const BlockRow at(num_k, block_size(format).size);
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

#endif
#endif
