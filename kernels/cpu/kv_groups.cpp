// Once in 32 tokens, so plain code: reads 128 bytes of a channel and writes 40.
#include "kernels/cpu/kv_groups.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/float_formats.h"

namespace llmb::cpu {

namespace {

constexpr int64_t kMost = 32;  // numbers that share a scale
static_assert(kMost == kKvGroup);

struct Code {
  uint16_t scale = 0, zero = 0;  // bf16
};

// The bf16 number that is x or follows it. REQUIRES: x >= 0
uint16_t rounded_up(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits >> 16) + ((bits & 0xffffu) != 0 ? 1 : 0));
}

// Codes of x [n], two in a byte: the first half of them in low halves. REQUIRES: n even, at most kMost
Code encode(const float* x, int64_t n, uint8_t* bytes) {
  float least = x[0], most = x[0];
  bool is_finite = true;
  for (int64_t i = 0; i < n; ++i) {
    is_finite &= std::isfinite(x[i]);
    least = std::min(least, x[i]);
    most = std::max(most, x[i]);
  }
  const uint16_t scale_bits = is_finite ? rounded_up((most - least) / 15) : 0;
  const float scale = bf16_to_f32(scale_bits);
  std::memset(bytes, 0, static_cast<size_t>(n / 2));
  if (!is_finite || !std::isfinite(scale)) return {0x7fc0, 0x7fc0};
  if (scale > 0)
    for (int64_t i = 0; i < n; ++i) {
      const auto code = static_cast<uint32_t>(std::min((x[i] - least) / scale + 0.5f, 15.0f));
      bytes[i % (n / 2)] |= static_cast<uint8_t>(i < n / 2 ? code : code << 4);
    }
  return {scale_bits, f32_to_bf16(least)};
}

void close_keys(const uint8_t* open, int64_t dim, uint8_t* codes) {
  uint8_t* scales = codes + dim * kKvGroup / 2;
  float x[kMost];
  for (int64_t channel = 0; channel < dim; ++channel, codes += kKvGroup / 2, scales += sizeof(Code)) {
    for (int64_t p = 0; p < kKvGroup; ++p) {
      uint16_t half = 0;
      std::memcpy(&half, open + (channel / 2 * kKvGroup + p) * 4 + channel % 2 * 2, 2);
      x[p] = bf16_to_f32(half);
    }
    const Code code = encode(x, kKvGroup, codes);
    std::memcpy(scales, &code, sizeof code);
  }
}

void close_values(const uint8_t* open, int64_t dim, uint8_t* codes) {
  uint8_t* scales = codes + dim * kKvGroup / 2;
  float x[kMost];
  for (int64_t p = 0; p < kKvGroup; ++p) {
    for (int64_t first = 0; first < dim; first += kMost, scales += sizeof(Code)) {
      const int64_t n = std::min(kMost, dim - first);
      for (int64_t i = 0; i < n; ++i) {
        uint16_t half = 0;
        std::memcpy(&half, open + (p / 2 * dim + first + i) * 4 + p % 2 * 2, 2);
        x[i] = bf16_to_f32(half);
      }
      const Code code = encode(x, n, codes);
      std::memcpy(scales, &code, sizeof code);
      codes += n / 2;
    }
  }
}

}  // namespace

void close_kv_groups(const KvCacheView& open, const KvCacheView& kv, std::span<const ClosingGroup> groups,
                     ThreadPool& pool) {
  LLMB_CHECK(open.dtype == DType::kBF16 && open.block_size == kKvGroup && kv.dtype == DType::kI4);
  LLMB_CHECK(kv.head_dim % 2 == 0 && kv.block_size % kKvGroup == 0 && open.head_dim == kv.head_dim);
  pool.parallel_for(static_cast<int64_t>(groups.size()) * kv.num_kv_heads, [&](int64_t i, int) {
    const ClosingGroup& group = groups[static_cast<size_t>(i / kv.num_kv_heads)];
    const int64_t head = i % kv.num_kv_heads, block = group.slot / kv.block_size;
    const int64_t at = group.slot % kv.block_size / kKvGroup;
    close_keys(open.keys(group.from, head), kv.head_dim, kv.keys(block, head) + at * kv.group_key_bytes());
    close_values(open.values(group.from, head), kv.head_dim, kv.values(block, head) + at * kv.group_value_bytes());
  });
}

}  // namespace llmb::cpu
