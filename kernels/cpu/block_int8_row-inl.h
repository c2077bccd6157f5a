// A lone row over blocks of few bits, rounded to int8 (linear_blocks_int8.cpp), by AVX-512's VNNI: it meets codes where
// they are decoded, in registers. AVX2 has too few of them for this order (block_int8_avx2-inl.h). Included by
// linear_blocks_int8.cpp, once for each SIMD target.

#if defined(LLMB_KERNELS_CPU_BLOCK_INT8_ROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LLMB_KERNELS_CPU_BLOCK_INT8_ROW_INL_H_
#undef LLMB_KERNELS_CPU_BLOCK_INT8_ROW_INL_H_
#else
#define LLMB_KERNELS_CPU_BLOCK_INT8_ROW_INL_H_
#endif

#include <bit>

#include "kernels/cpu/block_row.h"
#include "kernels/cpu/block_stretch-inl.h"
#include "kernels/cpu/linear_task.h"

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

#define LLMB_ROW_DOTS LLMB_TARGET_WITH("avx512vnni")

// Sums of a lone row's products with a part of kVecs vectors of columns.
template <int kVecs>
class RowDots {
 public:
  LLMB_ROW_DOTS HWY_INLINE void start(VI with) {
    LLMB_UNROLL for (VI& sum : sums_) sum = with;
  }
  // A word of the part: its codes in vector v by four numbers of x.
  LLMB_ROW_DOTS HWY_INLINE void add(int v, U codes, const uint8_t* x) {
    int32_t four;
    std::memcpy(&four, x, 4);
    sums_[v].raw = _mm512_dpbusd_epi32(sums_[v].raw, codes.raw, _mm512_set1_epi32(four));
  }
  LLMB_ROW_DOTS HWY_INLINE VI sum(int v) const { return sums_[v]; }
  // Keeps requests from *ahead on behind the words that were added: the compiler would put all of a run in front.
  LLMB_ROW_DOTS HWY_INLINE void pin(const uint8_t** ahead) { asm volatile("" : "+r"(*ahead), "+v"(sums_[0].raw)); }

 private:
  VI sums_[kVecs];
};

// Where numbers of a row of x stand from a run on, their parts' sums, and the scales of its blocks.
struct RunOfX {
  const uint8_t* numbers;
  const int32_t* sums;
  const float* scale;
};
template <class F>
constexpr int kHalvesOf = F::kIsByHalves ? 2 : 1;
// Runs that are multiplied together.
template <class F>
constexpr int kRunsAtOnce = F::kIsPaired ? 2 : 1;

// Sums of a part begin so that the offset of its codes is taken off.
template <class F>
HWY_INLINE VI row_start(VI sum_of_x) {
  constexpr int kOffset = offset_of<F>();
  static_assert((kOffset & (kOffset - 1)) == 0, "a power of two or none");
  if constexpr (kOffset == 0) return hn::Zero(DI());
  else return hn::Sub(hn::Zero(DI()), hn::ShiftLeft<std::bit_width(unsigned{kOffset}) - 1>(sum_of_x));
}

// kRunsAtOnce runs of 32 k of a lone row by kVecs vectors of columns, and on to the next. block: their sums in the
// block; ahead: what is asked for meanwhile, evenly, as many requests at once would wait for each other and the
// products for them.
template <class F, int kVecs>
LLMB_ROW_DOTS HWY_INLINE void row_runs(SectionReader s, int64_t run, const uint8_t*& ahead, RunOfX& x, V* block) {
  constexpr int kHalves = kHalvesOf<F>, kPartWords = 8 / kHalves, kAtOnce = kRunsAtOnce<F>;
  constexpr int kFetched = block_section(F::kBlocks).size() / F::kRuns * kAtOnce * kVecs * kLanes / kColumns;  // bytes
  // Else the compiler keeps what later runs read, too, and their addresses, and runs out of registers.
  asm volatile("" : "+r"(s.words_at), "+r"(s.bytes_at));
  LLMB_UNROLL for (int half = 0; half < kHalves; ++half) {
    VI sums_of_x[kAtOnce];
    RowDots<kVecs> dots[kAtOnce];
    LLMB_UNROLL for (int r = 0; r < kAtOnce; ++r) {
      sums_of_x[r] = hn::Set(DI(), x.sums[r * kHalves + half]);
      dots[r].start(row_start<F>(sums_of_x[r]));
    }
    LLMB_UNROLL for (int i = 0; i < kPartWords; ++i) {
      const int word = half * kPartWords + i;
      dots[0].pin(&ahead);
      LLMB_UNROLL for (int at = ceil_div(word * kFetched, 8 * 64) * 64; 8 * at < (word + 1) * kFetched; at += 64)
          __builtin_prefetch(ahead + at);
      LLMB_UNROLL for (int v = 0; v < kVecs; ++v) {
        LLMB_UNROLL for (int r = 0; r < kAtOnce; ++r) dots[r].add(
            v, as_bytes<F>(F::codes(s.from(v * kLanes), run + r, word)), x.numbers + r * kRun + 4 * word);
      }
    }
    LLMB_UNROLL for (int r = 0; r < kAtOnce; ++r) {
      V t = hn::ConvertTo(D(), sums_of_x[r]), scale = t;
      if constexpr (F::kRuns == 1) scale = hn::Set(D(), *x.scale), t = hn::Mul(t, scale);
      LLMB_UNROLL for (int v = 0; v < kVecs; ++v) {
        const SectionReader from = s.from(v * kLanes);
        V sum = hn::ConvertTo(D(), dots[r].sum(v));
        if constexpr (F::kRuns == 1) sum = hn::Mul(sum, scale);
        block[v] = hn::MulAdd(sum, F::scale(from, run + r, half), block[v]);
        if constexpr (F::kHasMinimum) {
          const V minimum = F::minimum(from, run + r, half);
          block[v] = F::kAddsMinimum ? hn::MulAdd(t, minimum, block[v]) : hn::NegMulAdd(t, minimum, block[v]);
        }
      }
    }
  }
  ahead += kAtOnce * block_section(F::kBlocks).size() / F::kRuns;
  x.numbers += kAtOnce * kRun, x.sums += kAtOnce * kHalves;
}

// Adds the products of sections from data on, by kVecs vectors of columns from `column` on, to their sums.
template <class F, int kVecs>
LLMB_ROW_DOTS HWY_NOINLINE void row_sections(const uint8_t* data, int64_t num_sections, int64_t column, RunOfX x,
                                             float* sums) {
  constexpr BlockSection kSection = block_section(F::kBlocks);
  constexpr int64_t kSize = kSection.size(), kRunBytes = kSize / F::kRuns;
  constexpr int kAtOnce = kRunsAtOnce<F>;
  const uint8_t* ahead = data + row_fetch_bytes_ahead(kSection, F::kRuns) + column * kRunBytes / kColumns;
  V all[kVecs];
  LLMB_UNROLL for (int v = 0; v < kVecs; ++v) all[v] = hn::Load(D(), sums + v * kLanes);
  for (; num_sections > 0; --num_sections, data += kSize) {
    V block[kVecs];
    LLMB_UNROLL for (V& b : block) b = hn::Zero(D());
    const SectionReader s(kSection, data, column);
    // Code of a whole section, 8 to 14 KiB, takes longer to fetch than to run. On an EPYC of family 26 loops of a run
    // are 1.15 (Q3_K) to 1.45 times as fast from caches (IQ4_XS; Q6_K 1.3). So are those of pairs (Q4_K, Q5_K: 1.2),
    // but from memory they read 30 GB/s where the long code reads 39, for a reason that was not found (2026-11-28).
    if constexpr (F::kIsPaired) {
      LLMB_UNROLL for (int run = 0; run < F::kRuns; run += kAtOnce) row_runs<F, kVecs>(s, run, ahead, x, block);
    } else {
      _Pragma("GCC unroll 1") for (int64_t run = 0; run < F::kRuns; run += kAtOnce)
          row_runs<F, kVecs>(s, run, ahead, x, F::kRuns == 1 ? all : block);
    }
    const V scale = hn::Set(D(), *x.scale++);
    if (F::kRuns == 1) continue;
    LLMB_UNROLL for (int v = 0; v < kVecs; ++v) all[v] = hn::MulAdd(block[v], scale, all[v]);
  }
  LLMB_UNROLL for (int v = 0; v < kVecs; ++v) hn::Store(all[v], D(), sums + v * kLanes);
}

// x: the row's numbers and what stands behind them.
template <class F>
void multiply_row(const LinearTask& t, const uint8_t* x, float* sums) {
  constexpr int64_t kVecs = 4, kBlock = kRun * F::kRuns, kSize = block_section(F::kBlocks).size();
  const int64_t num_k = t.weight->in_features(), num_sections = num_k / kBlock;
  const BlockRow at(num_k, kBlock);
  const auto* const sums_of_x = reinterpret_cast<const int32_t*>(x + (F::kIsByHalves ? at.sums16 : at.sums32));
  const auto* const scales = reinterpret_cast<const float*>(x + at.scales);
  // All sections at once, or where their columns take several calls one by one, so that they are read as they lie.
  const int64_t step = t.column_end - t.column_begin == kVecs * kLanes ? num_sections : 1;
  for (int64_t b = 0; b < num_sections; b += step) {
    const RunOfX from{x + b * kBlock, sums_of_x + b * F::kRuns * kHalvesOf<F>, scales + b};
    const uint8_t* const data = t.weight->panel(t.panel) + b * kSize;
    int64_t column = t.column_begin;
    for (; column + kVecs * kLanes <= t.column_end; column += kVecs * kLanes)
      row_sections<F, kVecs>(data, step, column, from, sums + column);
    for (; column < t.column_end; column += kLanes) row_sections<F, 1>(data, step, column, from, sums + column);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#endif
#endif
