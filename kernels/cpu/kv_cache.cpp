#include "kernels/cpu/kv_cache.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/float_formats.h"

namespace llmb::cpu {

namespace {

// Element (row, column) of pairs of rows, [row pair][width][2].
int64_t pair_index(int64_t row, int64_t column, int64_t width) { return (row / 2 * width + column) * 2 + row % 2; }

struct Int8Code {
  float scale = 0, inverse = 0;  // byte i is x[i] * inverse, rounded, and stands for byte * scale
};

Int8Code int8_code(const float* x, int64_t n) {
  float max = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(x[i])) return {std::numeric_limits<float>::quiet_NaN(), 0};
    max = std::max(max, std::fabs(x[i]));
  }
  if (max < 0x1p-100f) return {};
  return {max / 127, 127 / max};
}

// The sum's last bit is a one: it is rounded to an integer, to nearest even.
int8_t int8_byte(float x, const Int8Code& code) {
  return std::isnan(code.scale) ? int8_t{0} : static_cast<int8_t>(std::bit_cast<int32_t>(x * code.inverse + 0x1.8p23f));
}

}  // namespace

void write_kv_slot(const float* k, const float* v, int64_t slot, const KvCacheView& kv) {
  const int64_t dim = kv.head_dim, bs = kv.block_size, block = slot / bs, at = slot % bs;
  for (int64_t h = 0; h < kv.num_kv_heads; ++h, k += dim, v += dim) {
    uint8_t* keys = kv.keys(block, h);
    uint8_t* values = kv.values(block, h);
    if (kv.dtype == DType::kF32) {
      for (int64_t i = 0; i < dim; ++i) reinterpret_cast<float*>(keys)[i * bs + at] = k[i];
      std::memcpy(values + at * dim * 4, v, static_cast<size_t>(dim) * 4);
    } else if (kv.dtype == DType::kBF16) {
      auto* k_to = reinterpret_cast<uint16_t*>(keys);
      auto* v_to = reinterpret_cast<uint16_t*>(values);
      for (int64_t i = 0; i < dim; ++i) k_to[pair_index(i, at, bs)] = f32_to_bf16(k[i]);
      for (int64_t i = 0; i < dim; ++i) v_to[pair_index(at, i, dim)] = f32_to_bf16(v[i]);
    } else {
      const Int8Code k_code = int8_code(k, dim), v_code = int8_code(v, dim);
      auto* k_to = reinterpret_cast<int8_t*>(keys);
      auto* v_to = reinterpret_cast<int8_t*>(values);
      for (int64_t i = 0; i < dim; ++i) k_to[i * bs + at] = int8_byte(k[i], k_code);
      for (int64_t i = 0; i < dim; ++i) v_to[at * dim + i] = int8_byte(v[i], v_code);
      kv.scales(block, h)[at] = k_code.scale;
      kv.scales(block, h)[bs + at] = v_code.scale;
    }
  }
}

}  // namespace llmb::cpu
