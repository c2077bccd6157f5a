// Quantises stored weights, some elements of a row at a time. Private to kernels/cpu.
#pragma once

#include <cstdint>

#include "core/types.h"

namespace llmb::cpu {

// Stored elements (float32, float16, bfloat16; at any address) as fp32.
void widen(const uint8_t* from, DType dtype, int64_t n, float* to);

// The largest |x|; NaN where an x is not finite.
float max_magnitude(const float* x, int64_t n);

// out[i] = x[i] · factor, to the nearest whole number, even where two are as near. Returns the sum of out. REQUIRES:
// none is beyond ±127, n <= 65536.
int32_t round_to_int8(const float* x, int64_t n, float factor, int8_t* out);

// 32 weights: scale · a number from -8 to 7 each. The element of largest magnitude, the first of several, becomes -8,
// so that all sixteen values are used. (A search for the scale with the least squared error was tried: it made no
// difference to answers and logits, and loading twice as long.)
struct Int4Group {
  uint16_t scale;     // bfloat16; NaN where an x is not finite, 0 where all are below 2^-100
  uint32_t words[4];  // of eight x each, the lowest four bits first, two's complement
};
void quantize_int4(const float* x,  // [32 · num_groups]
                   int64_t num_groups, Int4Group* out);

// 32 weights as numbers of eight bits, each code · scale − zero: the scale is the nearest whole number to a fifteenth of
// what lies between the least and the greatest of them, and zero puts their middle into the middle of the codes.
struct W4A8Group {
  uint8_t scale = 0;  // 1 to 16; 0 where all numbers are 0
  uint8_t zero = 0;   // two's complement
  uint32_t words[4] = {};  // of eight x each: byte i has code i in its low half, code 4 + i in its high one
};
// The largest magnitude that numbers are made of: numbers, rounded, are up to 8 beyond.
constexpr float kLargestW4A8 = 119;
// Numbers for x[i] · factor, whole groups. Returns the sum of the first n. REQUIRES: x[i] · factor is within
// ±kLargestW4A8, n <= 65536.
int32_t quantize_w4a8(const float* x,  // [n up to whole groups]
                      int64_t n, float factor, W4A8Group* out);

}  // namespace llmb::cpu
