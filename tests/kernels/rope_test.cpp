#include "kernels/cpu/rope.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "base/check.h"
#include "tests/support/kernel_support.h"
#include "tests/support/kv_bytes.h"

namespace llmb::cpu {
namespace {

using test::for_each_simd_target;
using test::GuardedFloats;
using test::KvBytes;
using test::random_normal;
using test::same_bytes;

struct Shape {
  int32_t num_heads, num_kv_heads, head_dim, block_size;
  int32_t rotary_dim = head_dim;
  DType dtype = DType::kF32;  // of the cache

  int64_t row_floats() const { return int64_t{num_heads + 2 * num_kv_heads} * head_dim; }
};

struct Output {
  std::vector<float> qkv;
  KvBytes cache;
};

constexpr int32_t kMaxPosition = 300;
constexpr int32_t kNumBlocks = 12;

Output run(const Shape& s, std::span<const float> qkv, std::span<const int32_t> positions,
           std::span<const int32_t> slots, ThreadPool& pool) {
  std::vector<float> cos, sin;
  for (int position = 0; position < kMaxPosition; ++position) {
    for (int i = 0; i < s.rotary_dim / 2; ++i) {
      const double angle = position * std::pow(10000.0, -2.0 * i / s.rotary_dim);
      cos.push_back(static_cast<float>(std::cos(angle)));
      sin.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  GuardedFloats x(static_cast<int64_t>(qkv.size()));
  KvBytes cache(s.dtype, kNumBlocks, s.block_size, s.num_kv_heads, s.head_dim);
  std::copy(qkv.begin(), qkv.end(), x.data());
  rope_and_kv_write(x.data(), positions.data(), slots.data(), static_cast<int64_t>(positions.size()), s.num_heads,
                    s.num_kv_heads, s.head_dim, s.rotary_dim, s.rotary_dim > 0 ? cos.data() : nullptr,
                    s.rotary_dim > 0 ? sin.data() : nullptr, cache.view(), pool);
  CHECK(x.guards_untouched());
  CHECK(cache.guards_untouched());
  return {x.copy(), std::move(cache)};
}

// Channel i of a head at `position`, in fp64, rotate-half convention.
double rotated(const float* head, int32_t rotary_dim, int32_t position, int32_t i) {
  if (i >= rotary_dim) return head[i];
  const int32_t half = rotary_dim / 2;
  const double angle = position * std::pow(10000.0, -2.0 * (i % half) / rotary_dim);
  return i < half ? head[i] * std::cos(angle) - head[i + half] * std::sin(angle)
                  : head[i] * std::cos(angle) + head[i - half] * std::sin(angle);
}

void check_shape(const Shape& s, ThreadPool& pool) {
  const std::vector<int32_t> positions = {0, 1, 17, 299, 5, 5};
  const int32_t bs = s.block_size;
  const std::vector<int32_t> slots = {0, bs - 1 == 0 ? 2 * bs : bs - 1, bs, kNumBlocks * bs - 1, 5 * bs, 7 * bs};
  const std::vector<float> qkv = random_normal(static_cast<int64_t>(positions.size()) * s.row_floats(), 1);
  const Output out = run(s, qkv, positions, slots, pool);
  std::set<int64_t> written;
  for (size_t t = 0; t < positions.size(); ++t) {
    const float* row = &qkv[t * s.row_floats()];
    for (int32_t h = 0; h < s.num_heads + 2 * s.num_kv_heads; ++h) {
      const float* head = row + h * s.head_dim;
      const int32_t kv_head = (h - s.num_heads) % s.num_kv_heads;
      const std::vector<float> stored = test::as_stored(s.dtype, std::span(head, s.head_dim));
      double max = 0;
      for (int32_t i = 0; i < s.head_dim; ++i)
        max = std::max(max, std::fabs(rotated(head, s.rotary_dim, positions[t], i)));
      for (int32_t i = 0; i < s.head_dim; ++i) {
        const float after = out.qkv[t * s.row_floats() + h * s.head_dim + i];
        const double expected = rotated(head, s.rotary_dim, positions[t], i);
        if (h < s.num_heads) {
          CHECK(std::fabs(after - expected) <= 1e-6 * (1 + std::fabs(expected)));
          continue;
        }
        CHECK(after == head[i]);
        if (h < s.num_heads + s.num_kv_heads) {
          const double rounding = s.dtype == DType::kF32    ? 0
                                  : s.dtype == DType::kBF16 ? 0x1p-8 * std::fabs(expected)  // half of its last bit
                                  : s.dtype == DType::kF8   ? 0x1p-4 * std::fabs(expected) + max * 0x1p-18
                                                            : max / 253;
          const float key = out.cache.key(slots[t], kv_head, i);
          CHECK(std::fabs(key - expected) <= 1e-6 * (1 + std::fabs(expected)) + rounding);
        } else {
          CHECK(out.cache.value(slots[t], kv_head, i) == stored[i]);
          written.insert(slots[t]);
        }
      }
    }
  }
  // Every slot that was not named still holds what it held.
  for (int64_t slot = 0; slot < kNumBlocks * bs; ++slot) {
    if (written.contains(slot)) continue;
    for (int32_t h = 0; h < s.num_kv_heads; ++h)
      for (int32_t i = 0; i < s.head_dim; ++i)
        CHECK((std::isnan(out.cache.key(slot, h, i)) && std::isnan(out.cache.value(slot, h, i))));
  }
}

}  // namespace

TEST_CASE(
    "q is rotated in place, k and v reach their slots and no others, for any head size, rotated part and block size") {
  ThreadPool pool(2);
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const int32_t head_dim : {2, 10, 30, 32, 34, 64, 80, 128}) {
      CAPTURE(head_dim);
      check_shape({4, 2, head_dim, 16}, pool);
      check_shape({3, 3, head_dim, 1}, pool);
      check_shape({16, 1, head_dim, 8}, pool);
      check_shape({7, 1, head_dim, 32}, pool);
      check_shape({4, 2, head_dim, 16, 0}, pool);
      check_shape({4, 2, head_dim, 16, 2}, pool);
      check_shape({4, 2, head_dim, 8, head_dim / 4 * 2}, pool);
      for (const DType dtype : {DType::kBF16, DType::kI8, DType::kF8}) {
        check_shape({4, 2, head_dim, 16, head_dim, dtype}, pool);
        check_shape({4, 2, head_dim, 1, head_dim, dtype}, pool);
        check_shape({3, 1, head_dim, 5, 0, dtype}, pool);
      }
    }
  });
}

TEST_CASE("a token's result is bit-identical alone, in a batch, with 1 to 3 threads, and on targets of one kind") {
  constexpr int32_t kTokens = 150;
  ThreadPool one(1), three(3);
  std::vector<int32_t> positions(kTokens), slots(kTokens);
  std::iota(positions.begin(), positions.end(), 100);
  for (int32_t t = 0; t < kTokens; ++t) slots[t] = (t * 7) % (kNumBlocks * 16);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8, DType::kF8}) {
    const Shape shape{9, 3, 64, 16, 64, dtype};
    const int64_t n = shape.row_floats();
    const std::vector<float> qkv = random_normal(kTokens * n, 2);
    std::map<bool, Output> first;
    for_each_simd_target([&](const std::string& target) {
      CAPTURE(target);
      Output whole = run(shape, qkv, positions, slots, one), threaded = run(shape, qkv, positions, slots, three);
      CHECK(same_bytes(whole.qkv, threaded.qkv));
      CHECK(same_bytes(whole.cache.copy(), threaded.cache.copy()));
      for (int32_t t = 0; t < kTokens; t += 11) {
        const Output alone = run(shape, std::span(qkv).subspan(t * n, n), {&positions[t], 1}, {&slots[t], 1}, one);
        CHECK(same_bytes(alone.qkv, std::span(whole.qkv).subspan(t * n, n)));
        for (int32_t i = 0; i < 3 * 64; ++i) {
          CHECK(alone.cache.key(slots[t], i / 64, i % 64) == whole.cache.key(slots[t], i / 64, i % 64));
          CHECK(alone.cache.value(slots[t], i / 64, i % 64) == whole.cache.value(slots[t], i / 64, i % 64));
        }
      }
      const auto [it, is_first] = first.emplace(test::has_fused_multiply_add(target), whole);
      if (!is_first)
        CHECK((same_bytes(it->second.qkv, whole.qkv) && same_bytes(it->second.cache.copy(), whole.cache.copy())));
    });
  }
}

TEST_CASE("bfloat16 rounds to nearest even; int8 keeps zeros, ends of the range, and says what is not finite") {
  ThreadPool pool(1);
  constexpr int32_t kDim = 8;
  const float inf = INFINITY, nan = std::nanf(""), large = std::bit_cast<float>(0x7f7fffffu);
  const auto bits = [](uint32_t b) { return std::bit_cast<float>(b); };
  const std::vector<std::vector<float>> rows = {
      {bits(0x3f800000), bits(0x3f808000), bits(0x3f818000), bits(0x3f808001), bits(0x3f807fff), -bits(0x3f818000), 0,
       -0.0f},
      {large, -large, 1e-45f, bits(0x00008000), inf, -inf, nan, bits(0x7f800001)},
      {127, -127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 126.5f},
      {0, 0, 0, 0, 0, 0, 0, -0.0f},
      {1e-38f, -1e-38f, 0, 0, 0, 0, 0, 0},
      {large, 1, -large, large / 2, 0, 0, 0, 0},
      {1, 2, nan, 3, 0, 0, 0, 0},
      {1, 2, 3, -inf, 0, 0, 0, 0}};
  for (const DType dtype : {DType::kBF16, DType::kI8, DType::kF8}) {
    for (const std::vector<float>& row : rows) {
      std::vector<float> qkv(kDim, 1);
      qkv.insert(qkv.end(), row.begin(), row.end());
      qkv.insert(qkv.end(), row.begin(), row.end());
      const int32_t position = 0, slot = 3;
      const Output out = run({1, 1, kDim, 4, 0, dtype}, qkv, {&position, 1}, {&slot, 1}, pool);
      const std::vector<float> expected = test::as_stored(dtype, row);
      for (int32_t i = 0; i < kDim; ++i) {
        CAPTURE(i);
        for (const float x : {out.cache.key(slot, 0, i), out.cache.value(slot, 0, i)})
          CHECK(((std::isnan(x) && std::isnan(expected[i])) || x == expected[i]));
      }
    }
  }
}

TEST_CASE("no tokens is nothing to do, and a cache of another shape is refused") {
  ThreadPool pool(1);
  run({4, 2, 64, 16}, {}, {}, {}, pool);
  const KvCacheView kv{nullptr, DType::kF32, 16, 2, 64};
  CHECK_THROWS_AS(rope_and_kv_write(nullptr, nullptr, nullptr, 0, 4, 2, 32, 32, nullptr, nullptr, kv, pool),
                  CheckFailure);
  CHECK_THROWS_AS(rope_and_kv_write(nullptr, nullptr, nullptr, 0, 4, 4, 64, 64, nullptr, nullptr, kv, pool),
                  CheckFailure);
  CHECK_THROWS_AS(rope_and_kv_write(nullptr, nullptr, nullptr, 0, 4, 2, 64, 66, nullptr, nullptr, kv, pool),
                  CheckFailure);
  CHECK_THROWS_AS(rope_and_kv_write(nullptr, nullptr, nullptr, 0, 4, 2, 64, 33, nullptr, nullptr, kv, pool),
                  CheckFailure);
}

}  // namespace llmb::cpu
