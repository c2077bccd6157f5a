// Numbers of 8 bits: a sign, 4 bits of exponent, 3 of mantissa, at most 448, no infinities (OCP's E4M3). Their
// conversions are in widen_codes.h.
#pragma once

#include <cstdint>

namespace llmb::cuda {

struct E4m3 {
  uint8_t bits;
};
constexpr float kLargestE4m3 = 448;

}  // namespace llmb::cuda
