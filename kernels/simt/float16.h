// __nv_bfloat16 and __half with their pairs, as CUDA's headers name them. Conversions round to nearest even; NaN stays
// NaN (in CUDA's canonical form), what is too large becomes infinity. Arithmetic rounds after every operation.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/simt/types.h"

namespace llmb::simt {

constexpr uint16_t bfloat16_bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FFF;
  return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}
constexpr float bfloat16_value(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

constexpr uint16_t half_bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  if (magnitude > 0x7F800000u) return 0x7FFF;
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // rounds to 65536 or more
  if (magnitude < 0x38800000u) {  // subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000u));
  }
  const uint32_t rounded = magnitude - 0x38000000u + 0xFFFu + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | rounded >> 13);
}
constexpr float half_value(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t magnitude = uint32_t{bits & 0x7FFFu} << 13;
  if (magnitude >= 0x0F800000u) return std::bit_cast<float>(sign | 0x7F800000u | (magnitude & 0x7FFFFFu));
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;  // exact, subnormals too
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(scaled));
}

}  // namespace llmb::simt

struct __nv_bfloat16_raw {
  unsigned short x;
};
struct __half_raw {
  unsigned short x;
};

#define LLMB_SIMT_FLOAT16(Type, Raw, to_bits, to_value)                                                              \
  struct Type {                                                                                                      \
    Type() = default;                                                                                                \
    constexpr Type(float value) : bits(::llmb::simt::to_bits(value)) {}                                              \
    constexpr Type(double value) : Type(static_cast<float>(value)) {}                                                \
    constexpr Type(int value) : Type(static_cast<float>(value)) {}                                                   \
    constexpr Type(Raw raw) : bits(raw.x) {}                                                                         \
    constexpr operator float() const { return ::llmb::simt::to_value(bits); }                                        \
    constexpr operator Raw() const { return {bits}; }                                                                \
    Type& operator+=(Type b) { return *this = Type(float(*this) + float(b)); }                                       \
    Type& operator-=(Type b) { return *this = Type(float(*this) - float(b)); }                                       \
    Type& operator*=(Type b) { return *this = Type(float(*this) * float(b)); }                                       \
    Type& operator/=(Type b) { return *this = Type(float(*this) / float(b)); }                                       \
    unsigned short bits;                                                                                             \
  };                                                                                                                 \
  struct alignas(4) Type##2 {                                                                                        \
    Type##2() = default;                                                                                             \
    constexpr Type##2(Type a, Type b) : x(a), y(b) {}                                                                \
    Type x, y;                                                                                                       \
  };                                                                                                                 \
  constexpr Type operator+(Type a, Type b) { return Type(float(a) + float(b)); }                                     \
  constexpr Type operator-(Type a, Type b) { return Type(float(a) - float(b)); }                                     \
  constexpr Type operator*(Type a, Type b) { return Type(float(a) * float(b)); }                                     \
  constexpr Type operator/(Type a, Type b) { return Type(float(a) / float(b)); }                                     \
  constexpr Type operator-(Type a) { return Type(Raw{static_cast<unsigned short>(a.bits ^ 0x8000)}); }               \
  constexpr bool operator==(Type a, Type b) { return float(a) == float(b); }                                         \
  constexpr bool operator<(Type a, Type b) { return float(a) < float(b); }                                           \
  constexpr bool operator>(Type a, Type b) { return float(a) > float(b); }                                           \
  constexpr bool operator<=(Type a, Type b) { return float(a) <= float(b); }                                         \
  constexpr bool operator>=(Type a, Type b) { return float(a) >= float(b); }                                         \
  constexpr Type __hadd(Type a, Type b) { return a + b; }                                                            \
  constexpr Type __hsub(Type a, Type b) { return a - b; }                                                            \
  constexpr Type __hmul(Type a, Type b) { return a * b; }                                                            \
  constexpr Type __hdiv(Type a, Type b) { return a / b; }                                                            \
  constexpr Type __hneg(Type a) { return -a; }                                                                       \
  inline Type __habs(Type a) { return Type(Raw{static_cast<unsigned short>(a.bits & 0x7FFF)}); }                     \
  inline Type __hfma(Type a, Type b, Type c) { return Type(std::fma(float(a), float(b), float(c))); }                \
  inline Type __hmax(Type a, Type b) { return Type(std::fmax(float(a), float(b))); }                                 \
  inline Type __hmin(Type a, Type b) { return Type(std::fmin(float(a), float(b))); }                                 \
  inline bool __hisnan(Type a) { return std::isnan(float(a)); }                                                      \
  inline bool __heq(Type a, Type b) { return a == b; }                                                               \
  inline bool __hlt(Type a, Type b) { return a < b; }                                                                \
  inline bool __hgt(Type a, Type b) { return a > b; }                                                                \
  constexpr Type##2 __hadd2(Type##2 a, Type##2 b) { return {a.x + b.x, a.y + b.y}; }                                 \
  constexpr Type##2 __hsub2(Type##2 a, Type##2 b) { return {a.x - b.x, a.y - b.y}; }                                 \
  constexpr Type##2 __hmul2(Type##2 a, Type##2 b) { return {a.x * b.x, a.y * b.y}; }                                 \
  inline Type##2 __hfma2(Type##2 a, Type##2 b, Type##2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; } \
  inline Type##2 __hmax2(Type##2 a, Type##2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }                      \
  inline Type##2 __hmin2(Type##2 a, Type##2 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }                      \
  constexpr float __low2float(Type##2 a) { return float(a.x); }                                                      \
  constexpr float __high2float(Type##2 a) { return float(a.y); }

LLMB_SIMT_FLOAT16(__nv_bfloat16, __nv_bfloat16_raw, bfloat16_bits, bfloat16_value)
LLMB_SIMT_FLOAT16(__half, __half_raw, half_bits, half_value)
#undef LLMB_SIMT_FLOAT16
