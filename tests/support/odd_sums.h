// 64-bit ARM's products of bf16 by bf16 (BFDOT, BFMMLA with FPCR.EBF = 0), from the definitions BFMulH, FPAdd_BF16 and
// BFDotAdd of the Arm Architecture Reference Manual: sums are rounded to odd, subnormals are zero.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace llmb::test {

// A finite number that is not zero, cut to fp32 with its last bit set where that took anything off. rest: what x lacks
// of the exact number, less than a unit in x's last place.
inline float round_to_odd(double x, double rest) {
  uint64_t bits;
  std::memcpy(&bits, &x, 8);
  if (rest != 0) bits = (bits - ((rest < 0) == (x < 0) ? 0 : 1)) | 1;
  const bool is_inexact = (bits & ((uint64_t{1} << 29) - 1)) != 0;
  bits = bits >> 29 << 29;
  double cut;
  std::memcpy(&cut, &bits, 8);
  if (std::fabs(cut) < 0x1p-126) return std::copysign(0.0f, static_cast<float>(x));
  if (std::fabs(cut) >= 0x1p128) return std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(x));
  const auto rounded = static_cast<float>(cut);
  uint32_t half;
  std::memcpy(&half, &rounded, 4);
  half |= is_inexact ? 1 : 0;
  float odd;
  std::memcpy(&odd, &half, 4);
  return odd;
}

inline float without_subnormal(float x) {
  return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
}

inline float odd_product(float a, float b) {
  const double exact = double{without_subnormal(a)} * double{without_subnormal(b)};  // 16 bits
  return std::isfinite(exact) && exact != 0 ? round_to_odd(exact, 0) : static_cast<float>(exact);
}

inline float odd_sum(float a, float b) {
  const double x = without_subnormal(a), y = without_subnormal(b), sum = x + y;
  if (!std::isfinite(sum) || sum == 0) return static_cast<float>(sum);
  const double rounded_y = sum - x;  // Knuth's two-sum
  return round_to_odd(sum, (x - (sum - rounded_y)) + (y - rounded_y));
}

// acc + (x0 · w0 + x1 · w1)
inline float odd_dot(float acc, float x0, float w0, float x1, float w1) {
  return odd_sum(acc, odd_sum(odd_product(x0, w0), odd_product(x1, w1)));
}

}  // namespace llmb::test
