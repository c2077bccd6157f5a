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

struct Int8Row {
  float scale = 0;
  std::vector<int8_t> bytes;
};

inline Int8Row round_to_int8(std::span<const float> x) {
  float max = 0;
  bool is_finite = true;
  for (const float value : x) {
    is_finite = is_finite && std::isfinite(value);
    max = std::max(max, std::fabs(value));
  }
  Int8Row row{0, std::vector<int8_t>(x.size(), 0)};
  if (!is_finite) row.scale = std::nanf("");
  if (!is_finite || max < 0x1p-100f) return row;
  row.scale = max / 127;
  for (size_t i = 0; i < x.size(); ++i) row.bytes[i] = static_cast<int8_t>(std::lrint(x[i] * (127 / max)));
  return row;
}

// The fp32 values that a head's key or value stands for once it is stored.
inline std::vector<float> as_stored(DType dtype, std::span<const float> x) {
  std::vector<float> out(x.begin(), x.end());
  if (dtype == DType::kBF16)
    for (float& value : out) value = std::bit_cast<float>(uint32_t{round_to_bf16(value)} << 16);
  if (dtype == DType::kI8) {
    const Int8Row row = round_to_int8(x);
    for (size_t i = 0; i < x.size(); ++i) out[i] = static_cast<float>(row.bytes[i]) * row.scale;
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
    const Int8Row k8 = round_to_int8(k), v8 = round_to_int8(v);
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
    const int64_t bytes = view_.dtype == DType::kI8 ? 1 : 4;
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
    return static_cast<float>(static_cast<int8_t>(*at)) * x;
  }

  cpu::KvCacheView view_;  // without its data
  mutable GuardedFloats memory_;
};

}  // namespace llmb::test
