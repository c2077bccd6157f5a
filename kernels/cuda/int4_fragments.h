// Numbers of int4 units in registers. Device code only.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/int4_units.h"
#include "kernels/cuda/ptx.h"

namespace llmb::cuda::int4 {

// Bits 4 i … 4 i + 3 of both halves of a word are codes: (code − zero) · scale of each, the product rounded once.
// `zero` and `scale` are pairs of T; a zero stands behind the exponent as a code does.
template <class T, int kRegister>
__device__ __forceinline__ uint32_t dequantize(uint32_t word, uint32_t zero, uint32_t scale) {
  using Pair = typename Pairs<T>::Pair;
  const uint32_t number = ptx::and_or(word >> (4 * kRegister), 0x000f000fu, Pairs<T>::kMagic);
  const Pair difference = __hsub2(reinterpret_cast<const Pair&>(number), reinterpret_cast<const Pair&>(zero));
  const Pair value = __hmul2(difference, reinterpret_cast<const Pair&>(scale));
  return reinterpret_cast<const uint32_t&>(value);
}

// The scales, or zeros, of two features as pairs of equal numbers.
struct TwoPairs {
  uint32_t first, second;
};
__device__ __forceinline__ TwoPairs pairs_of(uint32_t two) {
  return {__byte_perm(two, 0, 0x1010), __byte_perm(two, 0, 0x3232)};
}

// Bytes from the begin of a unit to this lane's codes of 16 features, and to its scales.
__device__ __forceinline__ int code_place(int sixteen) {
  return (sixteen * 32 + static_cast<int>(threadIdx.x) % 32) * 16;
}
__device__ __forceinline__ int scale_place(int sixteen) {
  return kCodeBytes + (sixteen * 8 + static_cast<int>(threadIdx.x) % 32 / 4) * 4;
}

// This lane's 32 numbers of 16 features and 64 k of a unit: fragments of mma_m16n8k16's first operand, 16 k each.
// use(k / 16, fragment)
template <class T, bool kHasZeros, class Use>
__device__ __forceinline__ void for_each_fragment(const uint8_t* lane_codes, const uint8_t* lane_scales,
                                                  const Use& use) {
  const uint4 codes = *reinterpret_cast<const uint4*>(lane_codes);
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
  const auto* const scales = reinterpret_cast<const uint32_t*>(lane_scales);
  constexpr uint32_t kEight = Pairs<T>::kMagic + 0x00080008u;
#pragma unroll
  for (int group = 0; group < kUnitK / kGroup; ++group) {
    const TwoPairs scale = pairs_of(scales[group * (kTileFeatures / 2)]);
    TwoPairs zero{kEight, kEight};
    if constexpr (kHasZeros) zero = pairs_of(scales[kScaleBytes / 4 + group * (kTileFeatures / 2)]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t word = words[2 * group + half];
      const uint32_t fragment[4] = {
          dequantize<T, 0>(word, zero.first, scale.first), dequantize<T, 1>(word, zero.second, scale.second),
          dequantize<T, 2>(word, zero.first, scale.first), dequantize<T, 3>(word, zero.second, scale.second)};
      use(2 * group + half, fragment);
    }
  }
}

}  // namespace llmb::cuda::int4
