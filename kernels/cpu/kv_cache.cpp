// A key goes to one word, or byte, in each of many cache lines, a value to lines of its own: what is stored is computed
// in vectors, and its lines are asked for a token ahead.
#include "kernels/cpu/kv_cache.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/float_formats.h"
#include "kernels/cpu/quantize.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/kv_cache.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/simd-inl.h"

#ifndef LLMB_KERNELS_CPU_KV_CACHE_ONCE_
#define LLMB_KERNELS_CPU_KV_CACHE_ONCE_
namespace llmb::cpu {

// With m = max |x|, and the largest number of a format: scale = m / largest, inverse = largest / m.
struct ByteCode {
  float scale = 0, inverse = 0;
};

}  // namespace llmb::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

// As f32_to_bf16.
void to_bf16(const float* x, int64_t n, uint16_t* out) {
  const D d;
  const DU du;
  const hn::Rebind<uint16_t, D> d16;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const V v = hn::LoadU(d, x + i);
    const auto bits = hn::BitCast(du, v), high = hn::ShiftRight<16>(bits);
    const auto even = hn::Add(hn::Set(du, 0x7fff), hn::And(high, hn::Set(du, 1)));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, even)), quiet = hn::Or(high, hn::Set(du, 0x40));
    const auto is_nan = hn::RebindMask(du, hn::IsNaN(v));
    hn::StoreU(hn::TruncateTo(d16, hn::IfThenElse(is_nan, quiet, rounded)), d16, out + i);
  }
  for (; i < n; ++i) out[i] = f32_to_bf16(x[i]);
}

constexpr uint32_t kSmallest = 0x46800000u;  // the bits of 2^14

// The sum's last bit is a one: it is rounded to an integer, to nearest even.
void to_int8(const float* x, int64_t n, ByteCode code, uint8_t* out) {
  const D d;
  const DU du;
  const hn::Rebind<uint8_t, D> d8;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const V sum = hn::Add(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, code.inverse)), hn::Set(d, 0x1.8p23f));
    hn::StoreU(hn::U8FromU32(hn::And(hn::BitCast(du, sum), hn::Set(du, 0xffu))), d8, out + i);
  }
  for (; i < n; ++i) out[i] = static_cast<uint8_t>(std::bit_cast<uint32_t>(x[i] * code.inverse + 0x1.8p23f));
}

// To nearest even: of numbers of full precision by an integer sum, below 2^-6 by one whose last bit is 2^-9.
void to_fp8(const float* x, int64_t n, ByteCode code, uint8_t* out) {
  const D d;
  const DU du;
  const hn::Rebind<uint8_t, D> d8;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const V y = hn::Mul(hn::LoadU(d, x + i), hn::Set(d, code.inverse)), size = hn::Abs(y);
    const auto bits = hn::BitCast(du, size);
    const auto even = hn::And(hn::ShiftRight<20>(bits), hn::Set(du, 1));
    const auto rounded = hn::ShiftRight<20>(hn::Add(bits, hn::Add(even, hn::Set(du, 0x7ffffu))));
    const auto full = hn::Sub(rounded, hn::Set(du, 120u << 3));
    const auto small = hn::Sub(hn::BitCast(du, hn::Add(size, hn::Set(d, 0x1p14f))), hn::Set(du, kSmallest));
    const auto is_small = hn::RebindMask(du, hn::Lt(size, hn::Set(d, 0x1p-6f)));
    const auto sign = hn::And(hn::ShiftRight<24>(hn::BitCast(du, y)), hn::Set(du, 0x80u));
    hn::StoreU(hn::U8FromU32(hn::Or(sign, hn::IfThenElse(is_small, small, full))), d8, out + i);
  }
  for (; i < n; ++i) {
    const float y = x[i] * code.inverse, size = std::fabs(y);
    const uint32_t bits = std::bit_cast<uint32_t>(size);
    const uint32_t full = ((bits + 0x7ffffu + (bits >> 20 & 1)) >> 20) - (120u << 3);
    const uint32_t small = std::bit_cast<uint32_t>(size + 0x1p14f) - kSmallest;
    out[i] = static_cast<uint8_t>((std::signbit(y) ? 0x80u : 0u) | (size < 0x1p-6f ? small : full));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmb::cpu {

HWY_EXPORT(to_bf16);
HWY_EXPORT(to_int8);
HWY_EXPORT(to_fp8);

namespace {

constexpr int64_t kLineBytes = 64;
constexpr int64_t kChunk = 128;  // channels, even

// The key and the value (null: it has none) of one head: channels, and where its keys and values lie; `at`: the
// position in the block.
struct Head {
  const float *k, *v;
  int64_t dim, block_size, at;
  uint8_t *keys, *values;
};

void write_f32(const Head& h) {
  for (int64_t i = 0; i < h.dim; ++i) std::memcpy(h.keys + (i * h.block_size + h.at) * 4, h.k + i, 4);
  if (h.v != nullptr) std::memcpy(h.values + h.at * h.dim * 4, h.v, static_cast<size_t>(h.dim) * 4);
}

void write_bf16(const Head& h) {
  uint16_t halves[kChunk];
  for (int64_t first = 0; first < h.dim; first += kChunk) {
    const int64_t n = std::min(kChunk, h.dim - first);
    HWY_DYNAMIC_DISPATCH(to_bf16)(h.k + first, n, halves);
    uint8_t* to = h.keys + (first / 2 * h.block_size + h.at) * 4;
    for (int64_t i = 0; i + 2 <= n; i += 2, to += h.block_size * 4) std::memcpy(to, halves + i, 4);
    if (n % 2 == 1) std::memcpy(to, halves + n - 1, 2);
    if (h.v == nullptr) continue;
    HWY_DYNAMIC_DISPATCH(to_bf16)(h.v + first, n, halves);
    to = h.values + ((h.at / 2 * h.dim + first) * 2 + h.at % 2) * 2;
    for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * 4, halves + i, 2);
  }
}

ByteCode byte_code(const float* x, int64_t n, float largest) {
  const float max = max_magnitude(x, n);
  if (std::isnan(max)) return {max, 0};
  if (max < 0x1p-100f) return {};
  return {max / largest, largest / max};
}

void to_bytes(const float* x, int64_t n, ByteCode code, DType dtype, uint8_t* out) {
  if (std::isnan(code.scale)) std::memset(out, 0, static_cast<size_t>(n));
  else if (dtype == DType::kI8) HWY_DYNAMIC_DISPATCH(to_int8)(x, n, code, out);
  else HWY_DYNAMIC_DISPATCH(to_fp8)(x, n, code, out);
}

void write_scaled(const Head& h, DType dtype, float* scales) {
  const float largest = dtype == DType::kI8 ? 127 : 448;
  const ByteCode k = byte_code(h.k, h.dim, largest), v = byte_code(h.v, h.dim, largest);
  uint8_t bytes[kChunk];
  for (int64_t first = 0; first < h.dim; first += kChunk) {
    const int64_t n = std::min(kChunk, h.dim - first);
    to_bytes(h.k + first, n, k, dtype, bytes);
    for (int64_t i = 0; i < n; ++i) std::memcpy(h.keys + (first + i) * h.block_size + h.at, bytes + i, 1);
    to_bytes(h.v + first, n, v, dtype, bytes);
    std::memcpy(h.values + h.at * h.dim + first, bytes, static_cast<size_t>(n));
  }
  scales[h.at] = k.scale;
  scales[h.block_size + h.at] = v.scale;
}

}  // namespace

void write_kv_slot(const float* k, const float* v, int64_t slot, const KvCacheView& kv) {
  const int64_t dim = kv.head_dim, bs = kv.block_size, block = slot / bs;
  LLMB_CHECK(kv.dtype != DType::kI4);
  for (int64_t h = 0; h < kv.num_kv_heads; ++h, k += dim, v += dim) {
    const Head head{k, kv.latent_dim > 0 ? nullptr : v, dim, bs, slot % bs, kv.keys(block, h), kv.values(block, h)};
    if (kv.dtype == DType::kF32) write_f32(head);
    else if (kv.dtype == DType::kBF16) write_bf16(head);
    else write_scaled(head, kv.dtype, kv.scales(block, h));
  }
}

namespace {

// `rows` elements of `bytes`, `stride` apart.
void copy_elements(const uint8_t* from, uint8_t* to, int64_t rows, int64_t stride, size_t bytes) {
  for (int64_t i = 0; i < rows; ++i) std::memcpy(to + i * stride, from + i * stride, bytes);
}

}  // namespace

void copy_kv_slot(int64_t from, int64_t to, const KvCacheView& kv) {
  const int64_t dim = kv.head_dim, bs = kv.block_size, a = from % bs, b = to % bs;
  LLMB_CHECK(kv.dtype != DType::kI4);
  for (int64_t h = 0; h < kv.num_kv_heads; ++h) {
    const uint8_t *keys = kv.keys(from / bs, h), *values = kv.values(from / bs, h);
    uint8_t *to_keys = kv.keys(to / bs, h), *to_values = kv.values(to / bs, h);
    if (kv.dtype == DType::kBF16) {
      copy_elements(keys + a * 4, to_keys + b * 4, ceil_div(dim, 2), bs * 4, 4);
      if (kv.latent_dim > 0) continue;
      copy_elements(values + a / 2 * dim * 4 + a % 2 * 2, to_values + b / 2 * dim * 4 + b % 2 * 2, dim, 4, 2);
      continue;
    }
    const int64_t bytes = dtype_bytes(kv.dtype);
    copy_elements(keys + a * bytes, to_keys + b * bytes, dim, bs * bytes, static_cast<size_t>(bytes));
    if (kv.latent_dim > 0) continue;
    std::memcpy(to_values + b * dim * bytes, values + a * dim * bytes, static_cast<size_t>(dim * bytes));
    if (!kv.has_scales()) continue;
    const float* scales = kv.scales(from / bs, h);
    float* to_scales = kv.scales(to / bs, h);
    to_scales[b] = scales[a];
    to_scales[bs + b] = scales[bs + a];
  }
}

void fetch_kv_slot(int64_t slot, const KvCacheView& kv) {
  const int64_t bs = kv.block_size, block = slot / bs, at = slot % bs;
  const bool has_pairs = kv.dtype == DType::kBF16;
  const int64_t word = has_pairs ? 4 : dtype_bytes(kv.dtype);
  const int64_t key_row = bs * word, value_row = kv.head_dim * word;
  const auto fetch = [](const uint8_t* line, const uint8_t* end, int64_t step) {
    for (; line < end; line += step) __builtin_prefetch(line, /*write=*/1, /*locality: the second-level cache*/ 2);
  };
  for (int64_t h = 0; h < kv.num_kv_heads; ++h) {
    const uint8_t *keys = kv.keys(block, h), *values = kv.values(block, h) + (has_pairs ? at / 2 : at) * value_row;
    fetch(keys + at * word, keys + kv.key_bytes(), std::max(key_row, kLineBytes));
    if (kv.latent_dim == 0) fetch(values, values + value_row, kLineBytes);
  }
}

}  // namespace llmb::cpu
#endif
