// The CPU's KV cache as kernels/cpu/kv_cache.h describes it, written and read here by code that shares nothing with
// the kernels.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/float_formats.h"
#include "kernels/cpu/kv_cache.h"
#include "tests/support/kernel_support.h"

namespace llmb::test {

// Nearest even, by comparing with both neighbours.
inline uint16_t round_to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return 0x7fff;
  if (std::isinf(x)) return static_cast<uint16_t>(bits >> 16);
  const uint32_t low = bits >> 16;
  const auto value = [](uint32_t halves) { return static_cast<double>(std::bit_cast<float>(halves << 16)); };
  // The neighbour above the largest number counts as 2^128.
  const double above = std::isinf(value(low + 1)) ? std::copysign(0x1p128, x) : value(low + 1);
  const double down = std::fabs(x - value(low)), up = std::fabs(above - x);
  return static_cast<uint16_t>(up < down || (up == down && low % 2 == 1) ? low + 1 : low);
}

// To nearest even, by the distance of neighbours. REQUIRES: |x| at most 448, but for a rounding
inline uint8_t round_to_fp8(float x) {
  const double size = std::fabs(double{x});
  const auto step_of = [](double y) { return std::ldexp(1.0, std::max(y == 0 ? -6 : std::ilogb(y), -6) - 3); };
  const double number = std::nearbyint(size / step_of(size)) * step_of(size), step = step_of(number);
  const int exponent = number < 0x1p-6 ? 0 : std::ilogb(number) + 7;
  const int mantissa = static_cast<int>(number / step) - (exponent > 0 ? 8 : 0);
  return static_cast<uint8_t>((std::signbit(x) ? 0x80 : 0) | exponent << 3 | mantissa);
}

// Bytes of int8 or fp8.
struct ByteRow {
  float scale = 0;
  std::vector<uint8_t> bytes;
};

inline float byte_value(DType dtype, uint8_t byte) {
  return dtype == DType::kF8 ? fp8_e4m3_to_f32(byte) : static_cast<float>(static_cast<int8_t>(byte));
}

inline ByteRow round_to_bytes(DType dtype, std::span<const float> x) {
  const float largest = dtype == DType::kF8 ? 448 : 127;
  float max = 0;
  bool is_finite = true;
  for (const float value : x) {
    is_finite = is_finite && std::isfinite(value);
    max = std::max(max, std::fabs(value));
  }
  ByteRow row{0, std::vector<uint8_t>(x.size(), 0)};
  if (!is_finite) row.scale = std::nanf("");
  if (!is_finite || max < 0x1p-100f) return row;
  row.scale = max / largest;
  for (size_t i = 0; i < x.size(); ++i) {
    const float y = x[i] * (largest / max);
    row.bytes[i] = dtype == DType::kF8 ? round_to_fp8(y) : static_cast<uint8_t>(std::lrint(y));
  }
  return row;
}

// The fp32 values that a head's key or value stands for once it is stored.
inline std::vector<float> as_stored(DType dtype, std::span<const float> x) {
  std::vector<float> out(x.begin(), x.end());
  if (dtype == DType::kBF16)
    for (float& value : out) value = std::bit_cast<float>(uint32_t{round_to_bf16(value)} << 16);
  if (dtype == DType::kI8 || dtype == DType::kF8) {
    const ByteRow row = round_to_bytes(dtype, x);
    for (size_t i = 0; i < x.size(); ++i) out[i] = byte_value(dtype, row.bytes[i]) * row.scale;
  }
  return out;
}

// A pool of blocks in which every slot is NaN, whatever its format.
class KvBytes {
 public:
  KvBytes(DType dtype, int32_t num_blocks, int32_t block_size, int32_t num_kv_heads, int32_t head_dim)
      : view_{nullptr, dtype, block_size, num_kv_heads, head_dim},
        memory_(num_blocks * num_kv_heads * view_.head_bytes() / 4, std::bit_cast<float>(0xffffffffu)) {}

  cpu::KvCacheView view() const {
    cpu::KvCacheView view = view_;
    view.data = reinterpret_cast<uint8_t*>(memory_.data());
    return view;
  }
  bool guards_untouched() const { return memory_.guards_untouched(); }
  std::vector<float> copy() { return memory_.copy(); }

  // One head's key and value, [head_dim] each.
  void store(int64_t slot, int64_t kv_head, std::span<const float> k, std::span<const float> v) {
    const ByteRow k8 = round_to_bytes(view_.dtype, k), v8 = round_to_bytes(view_.dtype, v);
    for (int64_t i = 0; i < view_.head_dim; ++i) {
      const Place p = place(slot, kv_head, i);
      if (view_.dtype == DType::kF32) {
        std::memcpy(p.key, &k[i], 4);
        std::memcpy(p.value, &v[i], 4);
      } else if (view_.dtype == DType::kBF16) {
        const uint16_t k16 = round_to_bf16(k[i]), v16 = round_to_bf16(v[i]);
        std::memcpy(p.key, &k16, 2);
        std::memcpy(p.value, &v16, 2);
      } else {
        std::memcpy(p.key, &k8.bytes[i], 1);
        std::memcpy(p.value, &v8.bytes[i], 1);
        std::memcpy(p.key_scale, &k8.scale, 4);
        std::memcpy(p.value_scale, &v8.scale, 4);
      }
    }
  }

  // Channel i of the key or the value in a slot.
  float key(int64_t slot, int64_t kv_head, int64_t i) const {
    const Place p = place(slot, kv_head, i);
    return load(p.key, p.key_scale);
  }
  float value(int64_t slot, int64_t kv_head, int64_t i) const {
    const Place p = place(slot, kv_head, i);
    return load(p.value, p.value_scale);
  }

 private:
  struct Place {
    uint8_t *key, *value, *key_scale, *value_scale;
  };

  Place place(int64_t slot, int64_t kv_head, int64_t i) const {
    const int64_t bs = view_.block_size, dim = view_.head_dim, at = slot % bs;
    uint8_t* head = view().data + (slot / bs * view_.num_kv_heads + kv_head) * view_.head_bytes();
    if (view_.dtype == DType::kBF16) {
      const int64_t key_pairs = (dim + 1) / 2;
      uint8_t* values = head + key_pairs * bs * 4;
      return {head + (i / 2 * bs + at) * 4 + i % 2 * 2, values + (at / 2 * dim + i) * 4 + at % 2 * 2, nullptr, nullptr};
    }
    const int64_t bytes = view_.has_scales() ? 1 : 4;
    uint8_t* scales = head + view_.head_bytes() - 8 * bs;
    return {head + (i * bs + at) * bytes, head + (dim * bs + at * dim + i) * bytes, scales + at * 4,
            scales + (bs + at) * 4};
  }

  float load(const uint8_t* at, const uint8_t* scale_at) const {
    if (view_.dtype == DType::kBF16) {
      uint16_t bits = 0;
      std::memcpy(&bits, at, 2);
      return std::bit_cast<float>(uint32_t{bits} << 16);
    }
    float x = 0;
    if (view_.dtype == DType::kF32) {
      std::memcpy(&x, at, 4);
      return x;
    }
    std::memcpy(&x, scale_at, 4);
    return byte_value(view_.dtype, *at) * x;
  }

  cpu::KvCacheView view_;  // without its data
  mutable GuardedFloats memory_;
};

}  // namespace llmb::test
