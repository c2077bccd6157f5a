// A layer's keys and values as int8 in device memory, each with an fp32 scale for its position and KV head, as the CPU
// has them (kernels/cpu/kv_cache.h, invariant 3): with m = max |x[i]| of a head's key or value, scale = m / 127 and
// byte i is x[i] * (127 / m), rounded to nearest even; it stands for byte * scale. All zero where m < 2^-100; where an
// x[i] is not finite the scale is NaN. Owns nothing.
#pragma once

#include <cstdint>

namespace llmb::cuda {

struct Int8Kv {
  int8_t *k = nullptr, *v = nullptr;               // [num_blocks, num_kv_heads, block_size, head_dim]
  float *k_scales = nullptr, *v_scales = nullptr;  // [num_blocks, num_kv_heads, block_size]
};

}  // namespace llmb::cuda
