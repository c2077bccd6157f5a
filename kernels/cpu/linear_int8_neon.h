// int8 products by NEON: tiles of kRows rows of x by 16 features, sums exact in 32 bits. Three forms, the same sums:
//   smull    any processor: products of pairs in 16 bits, which fit as neither factor is -128
//   sdot     with dotprod: four products a lane
//   smmla    with i8mm: two rows by two features by eight k
// Intrinsics throughout: a function with a target of its own cannot inline Highway's. Private to kernels/cpu.
#pragma once

#include <cstdint>
#include <cstring>

#include "hwy/detect_compiler_arch.h"

#if HWY_ARCH_ARM_A64
#include <arm_neon.h>

#include "kernels/cpu/linear_task.h"

#define LLMB_NEON_UNROLL _Pragma("GCC unroll 64")
// With what the rest of the file is compiled for.
#define LLMB_DOTPROD __attribute__((target("arch=armv8.2-a+crypto+dotprod")))
#define LLMB_I8MM __attribute__((target("arch=armv8.2-a+crypto+dotprod+i8mm")))

namespace llmb::cpu {

constexpr int kNeonColumns = 16, kNeonVecs = kNeonColumns / 4;
constexpr int64_t kNeonWordBytes = PackedLinear::kPanelWidth * 4;

// Words of four k of a panel by rows of x, for 16 features.
struct NeonBlock {
  const uint8_t* panel;  // the first word's 16 features; the next word is kNeonWordBytes further on
  const uint8_t* x;      // of row 0
  int64_t x_stride;      // bytes
  int64_t num_words;
  bool is_first;  // there is nothing in sums yet
  int32_t* sums;  // [rows][kPanelWidth]  in and out, of the first feature on
};

inline int8x16_t load_bytes(const uint8_t* p) { return vreinterpretq_s8_u8(vld1q_u8(p)); }
inline int8x16_t broadcast_word(const uint8_t* p) {
  int32_t four;
  std::memcpy(&four, p, 4);
  return vreinterpretq_s8_s32(vdupq_n_s32(four));
}

struct NeonSmull {
  static int32x4_t add(int32x4_t acc, int8x16_t b, int8x16_t x) {
    const int16x8_t low = vmull_s8(vget_low_s8(b), vget_low_s8(x)), high = vmull_high_s8(b, x);
    return vpadalq_s16(acc, vpaddq_s16(low, high));
  }
};

// The loop of smull and sdot, once for the compiler's options of each.
#define LLMB_NEON_TILE(name, options, add_products)                                                              \
  template <int kRows>                                                                                           \
  options inline void name(const NeonBlock& block, FetchAhead& fetch) {                                          \
    FetchAhead ahead = fetch;                                                                                    \
    int32x4_t acc[kRows * kNeonVecs];                                                                            \
    LLMB_NEON_UNROLL for (int i = 0; i < kRows * kNeonVecs; ++i) {                                               \
      const int32_t* from = block.sums + i / kNeonVecs * PackedLinear::kPanelWidth + i % kNeonVecs * 4;          \
      acc[i] = block.is_first ? vdupq_n_s32(0) : vld1q_s32(from);                                                \
    }                                                                                                            \
    const uint8_t *panel = block.panel, *x = block.x;                                                            \
    for (int64_t word = 0; word < block.num_words; ++word, panel += kNeonWordBytes, x += 4) {                    \
      ahead.turn<kNeonColumns * 4, false>(panel);                                                                \
      int8x16_t b[kNeonVecs];                                                                                    \
      LLMB_NEON_UNROLL for (int c = 0; c < kNeonVecs; ++c) b[c] = load_bytes(panel + c * 16);                    \
      LLMB_NEON_UNROLL for (int r = 0; r < kRows; ++r) {                                                         \
        const int8x16_t four = broadcast_word(x + r * block.x_stride);                                           \
        LLMB_NEON_UNROLL for (int c = 0; c < kNeonVecs; ++c) acc[r * kNeonVecs + c] =                            \
            add_products(acc[r * kNeonVecs + c], b[c], four);                                                    \
      }                                                                                                          \
    }                                                                                                            \
    fetch = ahead;                                                                                               \
    LLMB_NEON_UNROLL for (int i = 0; i < kRows * kNeonVecs; ++i)                                                 \
        vst1q_s32(block.sums + i / kNeonVecs * PackedLinear::kPanelWidth + i % kNeonVecs * 4, acc[i]);           \
  }

LLMB_NEON_TILE(smull_tile, , NeonSmull::add)
LLMB_NEON_TILE(sdot_tile, LLMB_DOTPROD, vdotq_s32)
#undef LLMB_NEON_TILE

// Two words at a time; after an odd number of them zeros of weights stand in for the last.
template <int kRows>
LLMB_I8MM inline void smmla_tile(const NeonBlock& block, FetchAhead& fetch) {
  constexpr int kPairs = (kRows + 1) / 2;  // of rows; the last of an odd number is its own partner
  constexpr int64_t kWidth = PackedLinear::kPanelWidth;
  FetchAhead ahead = fetch;
  int32x4_t acc[kPairs][kNeonVecs][2];  // of each two features: both rows' sums
  const auto second = [](int pair) { return 2 * pair + 1 < kRows ? 2 * pair + 1 : 2 * pair; };
  LLMB_NEON_UNROLL for (int p = 0; p < kPairs; ++p) {
    LLMB_NEON_UNROLL for (int c = 0; c < kNeonVecs; ++c) {
      const int32_t* from = block.sums + c * 4;
      const int32x4_t a = block.is_first ? vdupq_n_s32(0) : vld1q_s32(from + 2 * p * kWidth);
      const int32x4_t b = block.is_first ? vdupq_n_s32(0) : vld1q_s32(from + second(p) * kWidth);
      acc[p][c][0] = vcombine_s32(vget_low_s32(a), vget_low_s32(b));
      acc[p][c][1] = vcombine_s32(vget_high_s32(a), vget_high_s32(b));
    }
  }
  const uint8_t *panel = block.panel, *x = block.x;
  for (int64_t word = 0; word < block.num_words; word += 2, panel += 2 * kNeonWordBytes, x += 8) {
    ahead.turn<kNeonColumns * 4, false>(panel);
    const bool is_pair = word + 1 < block.num_words;
    if (is_pair) ahead.turn<kNeonColumns * 4, false>(panel + kNeonWordBytes);
    int8x16_t rows[kPairs];
    LLMB_NEON_UNROLL for (int p = 0; p < kPairs; ++p) {
      const uint8x8_t a = vld1_u8(x + 2 * p * block.x_stride), b = vld1_u8(x + second(p) * block.x_stride);
      rows[p] = vreinterpretq_s8_u8(vcombine_u8(a, b));
    }
    LLMB_NEON_UNROLL for (int c = 0; c < kNeonVecs; ++c) {
      const int32x4_t even = vreinterpretq_s32_s8(load_bytes(panel + c * 16));
      const int32x4_t odd =
          is_pair ? vreinterpretq_s32_s8(load_bytes(panel + kNeonWordBytes + c * 16)) : vdupq_n_s32(0);
      const int8x16_t first = vreinterpretq_s8_s32(vzip1q_s32(even, odd));
      const int8x16_t last = vreinterpretq_s8_s32(vzip2q_s32(even, odd));
      LLMB_NEON_UNROLL for (int p = 0; p < kPairs; ++p) {
        acc[p][c][0] = vmmlaq_s32(acc[p][c][0], rows[p], first);
        acc[p][c][1] = vmmlaq_s32(acc[p][c][1], rows[p], last);
      }
    }
  }
  fetch = ahead;
  LLMB_NEON_UNROLL for (int p = 0; p < kPairs; ++p) {
    LLMB_NEON_UNROLL for (int c = 0; c < kNeonVecs; ++c) {
      int32_t* to = block.sums + c * 4;
      const int32x4_t a = acc[p][c][0], b = acc[p][c][1];
      vst1q_s32(to + 2 * p * kWidth, vcombine_s32(vget_low_s32(a), vget_low_s32(b)));
      vst1q_s32(to + second(p) * kWidth, vcombine_s32(vget_high_s32(a), vget_high_s32(b)));
    }
  }
}

}  // namespace llmb::cpu

#endif
