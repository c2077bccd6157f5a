// A layer's keys and values as bytes in device memory, each with an fp32 scale for its position and KV head, as the CPU
// has them (kernels/cpu/kv_cache.h, invariant 3): with m = max |x[i]| of a head's key or value and `largest` the largest
// number of a byte, 127 of int8 and 448 of e4m3, scale = m / largest and byte i is x[i] * (largest / m), rounded to
// nearest even; it stands for byte * scale. All zero where m < 2^-100; where an x[i] is not finite the scale is NaN.
// Owns nothing.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/e4m3.h"

namespace llmb::cuda {

enum class KvCode { kNone, kInt8, kFp8 };  // kNone: keys and values are of the activations' type

template <class Code>  // int8_t or E4m3
struct ScaledKv {
  Code *k = nullptr, *v = nullptr;                 // [num_blocks, num_kv_heads, block_size, head_dim]
  float *k_scales = nullptr, *v_scales = nullptr;  // [num_blocks, num_kv_heads, block_size]
};
using Int8Kv = ScaledKv<int8_t>;
using Fp8Kv = ScaledKv<E4m3>;

template <class KV>
constexpr KvCode kCodeOf = std::is_same_v<KV, int8_t> ? KvCode::kInt8
                           : std::is_same_v<KV, E4m3> ? KvCode::kFp8
                                                      : KvCode::kNone;

}  // namespace llmb::cuda
