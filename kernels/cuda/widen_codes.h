// Bytes of int8 and e4m3 as the numbers that they stand for, exactly, and floats as e4m3.
#pragma once

#include <cstring>
#include <type_traits>

#include "kernels/cuda/device.h"
#include "kernels/cuda/e4m3.h"
#include "kernels/cuda/ptx.h"

namespace llmb::cuda {

// Numbers of 16 bits, two a word.
struct EvenOdd {
  uint32_t even, odd;  // of bytes 0 and 2, and 1 and 3
};

// Whether the device has an instruction for e4m3 (8.9 and later).
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
constexpr bool kConvertsE4m3 = true;
#else
constexpr bool kConvertsE4m3 = false;
#endif

namespace detail {

template <class T>
using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;

template <class T>
__device__ __forceinline__ Pair<T> pair_of(uint32_t bits) {
  Pair<T> pair;
  memcpy(&pair, &bits, sizeof(pair));
  return pair;
}
template <class T>
__device__ __forceinline__ uint32_t bits_of(const Pair<T>& pair) {
  uint32_t bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}

template <class T>
__device__ __forceinline__ uint32_t subtract_two(uint32_t a, uint32_t b) {
  return bits_of<T>(__hsub2(pair_of<T>(a), pair_of<T>(b)));
}
template <class T>
__device__ __forceinline__ uint32_t multiply_two(uint32_t a, uint32_t b) {
  return bits_of<T>(__hmul2(pair_of<T>(a), pair_of<T>(b)));
}

// As the lowest bits of numbers whose last bit is worth 1.
template <class T>
__device__ __forceinline__ EvenOdd widen_int8(uint32_t bytes) {
  if constexpr (std::is_same_v<T, __half>) {  // without its sign, from 1024 on
    const auto widen = [&](uint32_t selector) {
      return subtract_two<T>(__byte_perm(bytes ^ 0x80808080u, 0x64646464u, selector), 0x64806480u);
    };
    return {widen(0x4240), widen(0x4341)};
  } else {  // seven bits from 128 on; where the sign is set, 128 more are taken from it
    const auto widen = [](uint32_t two) {
      return subtract_two<T>(ptx::and_or(two, 0x007F007Fu, 0x43004300u), ptx::and_or(two, 0x00800080u, 0x43004300u));
    };
    return {widen(bytes), widen(bytes >> 8)};
  }
}

// Exponent and mantissa move to where T has them, subnormal numbers of e4m3 as subnormal ones of T; the product then
// makes up for the bias of the exponent.
template <class T, bool kByInstruction>
__device__ __forceinline__ EvenOdd widen_e4m3(uint32_t bytes) {
  constexpr bool kIsHalf = std::is_same_v<T, __half>;
  if constexpr (kIsHalf && kByInstruction) {
    EvenOdd numbers;
    ptx::e4m3_to_f16(__byte_perm(bytes, 0, 0x3120), numbers.even, numbers.odd);
    return numbers;
  } else {
    constexpr uint32_t kMagnitude = kIsHalf ? 0x3F803F80u : 0x07F007F0u;  // where they are to be
    constexpr uint32_t kFactor = kIsHalf ? 0x5C005C00u : 0x7B807B80u;     // 2^8, 2^120
    const uint32_t even = (bytes << (kIsHalf ? 7 : 4)) & kMagnitude, odd = (bytes >> (kIsHalf ? 1 : 4)) & kMagnitude;
    return {multiply_two<T>(ptx::and_or(bytes << 8, 0x80008000u, even), kFactor),
            multiply_two<T>(ptx::and_or(bytes, 0x80008000u, odd), kFactor)};
  }
}

}  // namespace detail

// The four bytes of a word, of Code, as numbers of T (__half or __nv_bfloat16). A byte that is NaN may become any
// number.
template <class T, class Code, bool kByInstruction = kConvertsE4m3>
__device__ __forceinline__ EvenOdd widen_four(uint32_t bytes) {
  if constexpr (std::is_same_v<Code, int8_t>) return detail::widen_int8<T>(bytes);
  else return detail::widen_e4m3<T, kByInstruction>(bytes);
}

__device__ __forceinline__ float to_float(int8_t code) { return static_cast<float>(code); }
__device__ __forceinline__ float to_float(E4m3 code) {  // the bits of fp32 but for the exponent's bias
  const auto word = static_cast<uint32_t>(static_cast<int32_t>(static_cast<int8_t>(code.bits)) * (1 << 20));
  return __uint_as_float(word & 0x87f00000u) * 0x1p120f;
}

// Rounded to nearest even. REQUIRES: |x| < 464, which rounds to 448 at most.
__device__ __forceinline__ E4m3 to_e4m3(float x) {
  const uint32_t sign = __float_as_uint(x) >> 24 & 0x80u, bits = __float_as_uint(x) & 0x7fffffffu;
  // Full precision by a sum of integers; below 2^-6 by one of floats whose last bit is 2^-9.
  const uint32_t full = ((bits + 0x7ffffu + (bits >> 20 & 1)) >> 20) - (120u << 3);
  const uint32_t small = __float_as_uint(__fadd_rn(__uint_as_float(bits), 0x1p14f)) - __float_as_uint(0x1p14f);
  return {static_cast<uint8_t>(sign | (__uint_as_float(bits) < 0x1p-6f ? small : full))};
}

}  // namespace llmb::cuda
