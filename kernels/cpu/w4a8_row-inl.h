// A lone row over w4a8 (number_panels.h) by AVX-512's VNNI: codes meet the row's numbers as they are stored, and the
// sums of a group are multiplied by its scales: sum x (code · scale − zero) = scale · sum x code − zero · sum x,
// exactly. So a word of eight codes takes five instructions where making its bytes and multiplying them takes fourteen:
// on an EPYC of family 26 one thread reads 105 GB/s from the second-level cache (50 before), 36 from memory that gives
// 40 (28; 2026-11-28, bench_kernels --shape llama-3.2-1b --ops linear --dtype w4a8 --rows 1 --threads 1). Included by
// linear_int8.cpp, once for each SIMD target.

#if defined(LLMB_KERNELS_CPU_W4A8_ROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LLMB_KERNELS_CPU_W4A8_ROW_INL_H_
#undef LLMB_KERNELS_CPU_W4A8_ROW_INL_H_
#else
#define LLMB_KERNELS_CPU_W4A8_ROW_INL_H_
#endif

#include <cstring>

#include "kernels/cpu/number_panels.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/tuning.h"

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

#define LLMB_W4A8_ROW LLMB_TARGET_WITH("avx512vnni")

// Groups of a panel from `groups` on, kVecs vectors of columns from `column` on, added to sums. x: 32 unsigned bytes
// for each group.
template <int kVecs>
LLMB_W4A8_ROW HWY_NOINLINE void w4a8_row_groups(const uint8_t* groups, int64_t num_groups, int64_t column,
                                                const uint8_t* x, RowFetch& fetch, int32_t* sums) {
  constexpr int kWidth = PackedLinear::kPanelWidth, kWords = kNumberGroup / 8;
  const __m512i nibbles = _mm512_set1_epi8(15);
  RowFetch ahead = fetch;
  __m512i acc[kVecs];
  LLMB_UNROLL for (int v = 0; v < kVecs; ++v) acc[v] = _mm512_loadu_si512(sums + column + v * 16);
  for (; num_groups > 0; --num_groups, groups += kNumberGroupBytes, x += kNumberGroup) {
    __m512i dots[kVecs];
    LLMB_UNROLL for (int v = 0; v < kVecs; ++v) dots[v] = _mm512_setzero_si512();
    LLMB_UNROLL for (int w = 0; w < kWords; ++w) {
      ahead.turn(groups + (w + 1) * (kNumberGroupBytes / kWords));
      int32_t low, high;
      std::memcpy(&low, x + 8 * w, 4);
      std::memcpy(&high, x + 8 * w + 4, 4);
      LLMB_UNROLL for (int v = 0; v < kVecs; ++v) {
        const __m512i codes = _mm512_loadu_si512(groups + (w * kWidth + column + v * 16) * 4);
        const __m512i second = _mm512_and_si512(_mm512_srli_epi32(codes, 4), nibbles);
        dots[v] = _mm512_dpbusd_epi32(dots[v], _mm512_set1_epi32(low), _mm512_and_si512(codes, nibbles));
        dots[v] = _mm512_dpbusd_epi32(dots[v], _mm512_set1_epi32(high), second);
      }
    }
    const uint8_t* const scales = groups + kWords * kWidth * 4 + column;
    const __m256i numbers = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
    const __m256i four = _mm256_sad_epu8(numbers, _mm256_setzero_si256());
    const __m128i two = _mm_add_epi32(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1));
    const __m512i sum = _mm512_broadcastd_epi32(_mm_add_epi32(two, _mm_unpackhi_epi64(two, two)));
    LLMB_UNROLL for (int v = 0; v < kVecs; ++v) {
      const auto* const at = reinterpret_cast<const __m128i*>(scales + v * 16);
      const __m512i scale = _mm512_cvtepu8_epi32(_mm_loadu_si128(at));
      const __m512i zero = _mm512_cvtepi8_epi32(_mm_loadu_si128(at + kWidth / 16));
      // The sum of 32 bytes fits 16 bits, and so does a zero: the upper halves' product is none.
      const __m512i taken_off = _mm512_madd_epi16(zero, sum);
      acc[v] = _mm512_add_epi32(acc[v], _mm512_sub_epi32(_mm512_mullo_epi32(dots[v], scale), taken_off));
    }
  }
  fetch = ahead;
  LLMB_UNROLL for (int v = 0; v < kVecs; ++v) _mm512_storeu_si512(sums + column + v * 16, acc[v]);
}

// Sums of all columns, or of half of them, of num_k products of x and a panel, as int8's are: x has
// 128 added.
void w4a8_row(const uint8_t* panel, int64_t num_k, const uint8_t* x, int64_t column_begin, int64_t column_end,
              int32_t* sums) {
  constexpr int64_t kVecs = PackedLinear::kPanelWidth / 16;
  std::memset(sums, 0, PackedLinear::kPanelWidth * sizeof(int32_t));
  RowFetch fetch(panel);
  const auto multiply = [&](const uint8_t* groups, int64_t num_groups, const uint8_t* numbers) {
    if (column_end - column_begin == kVecs * 16)
      return w4a8_row_groups<kVecs>(groups, num_groups, column_begin, numbers, fetch, sums);
    w4a8_row_groups<kVecs / 2>(groups, num_groups, column_begin, numbers, fetch, sums);
  };
  const int64_t num_groups = num_k / kNumberGroup, rest = num_k % kNumberGroup;
  multiply(panel, num_groups, x);
  if (rest == 0) return;
  uint8_t last[kNumberGroup] = {};  // zeros are no products
  std::memcpy(last, x + num_groups * kNumberGroup, static_cast<size_t>(rest));
  multiply(panel + num_groups * kNumberGroupBytes, 1, last);
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#endif
#endif
