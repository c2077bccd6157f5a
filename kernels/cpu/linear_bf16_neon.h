// Products of bf16 by bf16 on 64-bit ARM (BFMMLA): two rows of x by two features by four k at a time. A sum is a chain over
// pairs of k: acc + (x0 · w0 + x1 · w1), both additions rounded to odd, subnormals taken as zero (Arm ARM, BFDotAdd with
// FPCR.EBF = 0). Intrinsics throughout: a function with a target of its own cannot inline Highway's. Private to kernels/cpu.
#pragma once

#include <cstdint>

#include "hwy/detect_compiler_arch.h"

#if HWY_ARCH_ARM_A64
#include <arm_neon.h>

#include "kernels/cpu/linear_int8_neon.h"
#include "kernels/cpu/linear_task.h"

// With what the rest of the file is compiled for.
#define LLMB_BF16_MMLA __attribute__((target("arch=armv8.2-a+crypto+bf16")))

namespace llmb::cpu {

// Words [0, num_words) of kRows rows of x by 4 · kVecs columns, added to what `sums` begins with. After an odd number of
// words zeros of weights stand in for the last: only at the end of a row, where x is padded with zeros.
template <int kRows, int kVecs>
LLMB_BF16_MMLA inline void mmla_tile(const uint8_t* panel, int64_t num_words, const uint8_t* x, int64_t x_stride,
                                     int64_t column, const TileSums& sums, FetchAhead& fetch) {
  constexpr int kPairs = (kRows + 1) / 2;  // of rows; the last of an odd number is its own partner
  constexpr int64_t kWidth = PackedLinear::kPanelWidth, kWordBytes = kWidth * 4;
  const auto second = [](int pair) { return 2 * pair + 1 < kRows ? 2 * pair + 1 : 2 * pair; };
  FetchAhead ahead = fetch;
  float32x4_t acc[kPairs][kVecs][2];  // of each two features: both rows' sums
  LLMB_NEON_UNROLL for (int p = 0; p < kPairs; ++p) {
    LLMB_NEON_UNROLL for (int c = 0; c < kVecs; ++c) {
      const float* from = sums.from + column + c * 4;
      const float32x4_t a = sums.from == nullptr ? vdupq_n_f32(0) : vld1q_f32(from + 2 * p * kWidth);
      const float32x4_t b = sums.from == nullptr ? vdupq_n_f32(0) : vld1q_f32(from + second(p) * kWidth);
      acc[p][c][0] = vcombine_f32(vget_low_f32(a), vget_low_f32(b));
      acc[p][c][1] = vcombine_f32(vget_high_f32(a), vget_high_f32(b));
    }
  }
  panel += column * 4;
  for (int64_t word = 0; word < num_words; word += 2, panel += 2 * kWordBytes, x += 8) {
    ahead.turn<kVecs * 16, false>(panel);
    const bool is_pair = word + 1 < num_words;
    if (is_pair) ahead.turn<kVecs * 16, false>(panel + kWordBytes);
    bfloat16x8_t rows[kPairs];
    LLMB_NEON_UNROLL for (int p = 0; p < kPairs; ++p) {
      const uint8x8_t a = vld1_u8(x + 2 * p * x_stride), b = vld1_u8(x + second(p) * x_stride);
      rows[p] = vreinterpretq_bf16_u8(vcombine_u8(a, b));
    }
    LLMB_NEON_UNROLL for (int c = 0; c < kVecs; ++c) {
      const uint32x4_t even = vreinterpretq_u32_u8(vld1q_u8(panel + c * 16));
      const uint32x4_t odd =
          is_pair ? vreinterpretq_u32_u8(vld1q_u8(panel + kWordBytes + c * 16)) : vdupq_n_u32(0);
      const bfloat16x8_t first = vreinterpretq_bf16_u32(vzip1q_u32(even, odd));
      const bfloat16x8_t last = vreinterpretq_bf16_u32(vzip2q_u32(even, odd));
      LLMB_NEON_UNROLL for (int p = 0; p < kPairs; ++p) {
        acc[p][c][0] = vbfmmlaq_f32(acc[p][c][0], rows[p], first);
        acc[p][c][1] = vbfmmlaq_f32(acc[p][c][1], rows[p], last);
      }
    }
  }
  fetch = ahead;
  LLMB_NEON_UNROLL for (int c = 0; c < kVecs; ++c) {
    const int64_t at = column + c * 4;
    const float32x4_t bias = sums.bias == nullptr ? vdupq_n_f32(0) : vld1q_f32(sums.bias + at);
    LLMB_NEON_UNROLL for (int p = 0; p < kPairs; ++p) {
      float32x4_t a = vcombine_f32(vget_low_f32(acc[p][c][0]), vget_low_f32(acc[p][c][1]));
      float32x4_t b = vcombine_f32(vget_high_f32(acc[p][c][0]), vget_high_f32(acc[p][c][1]));
      if (sums.bias != nullptr) a = vaddq_f32(a, bias), b = vaddq_f32(b, bias);
      vst1q_f32(sums.to + 2 * p * sums.to_stride + at, a);
      vst1q_f32(sums.to + second(p) * sums.to_stride + at, b);
    }
  }
}

// All columns of a task, fewer rows by more columns, so that sums stay in registers.
template <int kRows>
inline void mmla_rows(const LinearTask& t, const uint8_t* panel, int64_t num_words, const uint8_t* x, int64_t x_stride,
                      const TileSums& sums, FetchAhead& ahead) {
  int64_t column = t.column_begin;
  if constexpr (kRows <= 2)
    for (; column + 32 <= t.column_end; column += 32)
      mmla_tile<kRows, 8>(panel, num_words, x, x_stride, column, sums, ahead);
  for (; column < t.column_end; column += 16) mmla_tile<kRows, 4>(panel, num_words, x, x_stride, column, sums, ahead);
}

}  // namespace llmb::cpu

#endif
