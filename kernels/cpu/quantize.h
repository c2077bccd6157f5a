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

}  // namespace llmb::cpu
