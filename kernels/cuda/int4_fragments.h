// Units of int4_units.h on their way to shared memory, and their numbers in registers. Device code only.
#pragma once

#include "base/check.h"
#include "kernels/cuda/code_tiles.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/int4_units.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/widen_codes.h"

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

// The same of e2m1 codes: scale · number. `scale` is 2^kE2m1Shift times the group's.
template <class T, int kRegister>
__device__ __forceinline__ uint32_t dequantize_e2m1(uint32_t word, uint32_t scale) {
  using Pair = typename Pairs<T>::Pair;
  constexpr int kFirst = 4 * kRegister, kPlace = Pairs<T>::kMantissaBits - 1;  // of the lowest bit, and where it goes
  constexpr uint32_t kBits = (7u << kPlace) * 0x10001u, kSigns = 0x80008000u;
  const uint32_t bits = kPlace >= kFirst ? word << (kPlace >= kFirst ? kPlace - kFirst : 0)
                                         : word >> (kPlace >= kFirst ? 0 : kFirst - kPlace);
  const uint32_t number = ptx::and_or(word << (12 - kFirst), kSigns, bits & kBits);
  const Pair value = __hmul2(reinterpret_cast<const Pair&>(number), reinterpret_cast<const Pair&>(scale));
  return reinterpret_cast<const uint32_t&>(value);
}

// The same of numbers of codes that are bytes, less 128 each as its zero is.
template <class T, bool kHasZero>
__device__ __forceinline__ uint32_t scaled(uint32_t numbers, uint32_t zero, uint32_t scale) {
  using Pair = typename Pairs<T>::Pair;
  Pair difference = reinterpret_cast<const Pair&>(numbers);
  if constexpr (kHasZero) difference = __hsub2(difference, reinterpret_cast<const Pair&>(zero));
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
template <Meaning kMeaning>
__device__ __forceinline__ int code_place(int sixteen) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return has_bytes(kMeaning) ? sixteen * 1024 + lane * 8 : (sixteen * 32 + lane) * 16;
}
template <Meaning kMeaning>
__device__ __forceinline__ int scale_place(int sixteen) {
  return code_bytes(kMeaning) + (sixteen * 8 + static_cast<int>(threadIdx.x) % 32 / 4) * 4;
}

// As for_each_fragment(), of codes that are bytes.
template <class T, bool kHasZeros, class Use>
__device__ __forceinline__ void for_each_fragment_of_bytes(const uint8_t* lane_codes, const uint32_t* scales,
                                                           const Use& use) {
#pragma unroll
  for (int group = 0; group < kUnitK / kGroup; ++group) {
    const TwoPairs scale = pairs_of(scales[group * (kTileFeatures / 2)]);
    TwoPairs zero{0, 0};
    if constexpr (kHasZeros) zero = pairs_of(scales[kScaleBytes / 4 + group * (kTileFeatures / 2)]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint2 words = *reinterpret_cast<const uint2*>(lane_codes + (2 * group + half) * 256);
      const EvenOdd low = widen_four<T, int8_t>(words.x), high = widen_four<T, int8_t>(words.y);
      const uint32_t fragment[4] = {scaled<T, kHasZeros>(low.even, zero.first, scale.first),
                                    scaled<T, kHasZeros>(high.even, zero.second, scale.second),
                                    scaled<T, kHasZeros>(low.odd, zero.first, scale.first),
                                    scaled<T, kHasZeros>(high.odd, zero.second, scale.second)};
      use(2 * group + half, fragment);
    }
  }
}

// This lane's 32 numbers of 16 features and 64 k of a unit: fragments of mma_m16n8k16's first operand, 16 k each.
// use(k / 16, fragment)
template <class T, Meaning kMeaning, class Use>
__device__ __forceinline__ void for_each_fragment(const uint8_t* lane_codes, const uint8_t* lane_scales,
                                                  const Use& use) {
  const auto* const scales = reinterpret_cast<const uint32_t*>(lane_scales);
  if constexpr (has_bytes(kMeaning))
    return for_each_fragment_of_bytes<T, has_zeros(kMeaning)>(lane_codes, scales, use);
  const uint4 codes = *reinterpret_cast<const uint4*>(lane_codes);
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
  constexpr uint32_t kEight = Pairs<T>::kMagic + 0x00080008u;
#pragma unroll
  for (int group = 0; group < kUnitK / kGroup; ++group) {
    const TwoPairs scale = pairs_of(scales[group * (kTileFeatures / 2)]);
    TwoPairs zero{kEight, kEight};
    if constexpr (kMeaning == Meaning::kFromZeros)
      zero = pairs_of(scales[kScaleBytes / 4 + group * (kTileFeatures / 2)]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t word = words[2 * group + half];
      if constexpr (kMeaning == Meaning::kE2m1) {
        const uint32_t fragment[4] = {
            dequantize_e2m1<T, 0>(word, scale.first), dequantize_e2m1<T, 1>(word, scale.second),
            dequantize_e2m1<T, 2>(word, scale.first), dequantize_e2m1<T, 3>(word, scale.second)};
        use(2 * group + half, fragment);
      } else {
        const uint32_t fragment[4] = {
            dequantize<T, 0>(word, zero.first, scale.first), dequantize<T, 1>(word, zero.second, scale.second),
            dequantize<T, 2>(word, zero.first, scale.first), dequantize<T, 3>(word, zero.second, scale.second)};
        use(2 * group + half, fragment);
      }
    }
  }
}

// As code_tiles.h wants them.
template <Meaning kMeaning>
struct Codes {
  static constexpr int kUnitBytes = unit_bytes(kMeaning);
  static constexpr bool kHasRowScales = false;
  using Source = const uint8_t*;  // units
  static __device__ __forceinline__ Source source(const void* units, int64_t) {
    return static_cast<const uint8_t*>(units);
  }

  template <int kUnits>
  using Loader = code_tiles::UnitLoader<kUnitBytes, kUnits>;

  struct Places {
    __device__ __forceinline__ explicit Places(int sixteen)
        : codes(code_place<kMeaning>(sixteen)), scales(scale_place<kMeaning>(sixteen)) {}
    __device__ __forceinline__ void keep() {
      ptx::keep(codes);
      ptx::keep(scales);
    }
    int codes, scales;
  };

  template <class T, class Use>
  static __device__ __forceinline__ void for_each_fragment(const uint8_t* unit, const Places& places, const Use& use) {
    int4::for_each_fragment<T, kMeaning>(unit + places.codes, unit + places.scales, use);
  }
};

// Calls f(a value of the Codes of this meaning), of four bits.
template <class Function>
void with_four_bits(Meaning meaning, const Function& f) {
  switch (meaning) {
    case Meaning::kFromEight:
      return f(Codes<Meaning::kFromEight>());
    case Meaning::kFromZeros:
      return f(Codes<Meaning::kFromZeros>());
    case Meaning::kE2m1:
      return f(Codes<Meaning::kE2m1>());
    case Meaning::kBytes:
    case Meaning::kBytesFromZeros:
      LLMB_CHECK_MSG(false, "codes of four bits are expected");
  }
}

// The same of any.
template <class Function>
void with_codes(Meaning meaning, const Function& f) {
  if (meaning == Meaning::kBytes) return f(Codes<Meaning::kBytes>());
  if (meaning == Meaning::kBytesFromZeros) return f(Codes<Meaning::kBytesFromZeros>());
  with_four_bits(meaning, f);
}

}  // namespace llmb::cuda::int4
