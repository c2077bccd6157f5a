#include "kernels/cpu/rope.h"

#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "base/check.h"
#include "tests/support/compare.h"
#include "tests/support/kernel_support.h"

namespace llmb::cpu {
namespace {

using test::for_each_simd_target;
using test::GuardedFloats;
using test::random_normal;
using test::same_bytes;

struct Shape {
  int32_t num_heads, num_kv_heads, head_dim, block_size;
  int32_t rotary_dim = head_dim;

  int64_t row_floats() const { return int64_t{num_heads + 2 * num_kv_heads} * head_dim; }
};

struct Output {
  std::vector<float> qkv, k, v;
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
  const int64_t cache_floats = int64_t{kNumBlocks} * s.num_kv_heads * s.head_dim * s.block_size;
  GuardedFloats x(static_cast<int64_t>(qkv.size())), k(cache_floats), v(cache_floats);
  std::copy(qkv.begin(), qkv.end(), x.data());
  const KvCacheView kv{k.data(), v.data(), s.block_size, s.num_kv_heads, s.head_dim};
  rope_and_kv_write(x.data(), positions.data(), slots.data(), static_cast<int64_t>(positions.size()), s.num_heads,
                    s.num_kv_heads, s.head_dim, s.rotary_dim, s.rotary_dim > 0 ? cos.data() : nullptr,
                    s.rotary_dim > 0 ? sin.data() : nullptr, kv, pool);
  CHECK(x.guards_untouched());
  CHECK(k.guards_untouched());
  CHECK(v.guards_untouched());
  return {x.copy(), k.copy(), v.copy()};
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
  std::vector<bool> written(out.k.size(), false);
  for (size_t t = 0; t < positions.size(); ++t) {
    const float* row = &qkv[t * s.row_floats()];
    for (int32_t h = 0; h < s.num_heads + 2 * s.num_kv_heads; ++h) {
      const float* head = row + h * s.head_dim;
      const int32_t kv_head = (h - s.num_heads) % s.num_kv_heads;
      for (int32_t i = 0; i < s.head_dim; ++i) {
        const float after = out.qkv[t * s.row_floats() + h * s.head_dim + i];
        const double expected = rotated(head, s.rotary_dim, positions[t], i);
        const int64_t block = (int64_t{slots[t] / bs} * s.num_kv_heads + kv_head) * s.head_dim * bs;
        if (h < s.num_heads) {
          CHECK(std::fabs(after - expected) <= 1e-6 * (1 + std::fabs(expected)));
          continue;
        }
        CHECK(after == head[i]);
        if (h < s.num_heads + s.num_kv_heads) {
          const int64_t at = block + i * bs + slots[t] % bs;
          CHECK(std::fabs(out.k[at] - expected) <= 1e-6 * (1 + std::fabs(expected)));
        } else {
          const int64_t at = block + int64_t{slots[t] % bs} * s.head_dim + i;
          CHECK(out.v[at] == head[i]);
          written[at] = true;
        }
      }
    }
  }
  // Every slot that was not named still holds what it held.
  int64_t num_k = 0, num_v = 0;
  for (size_t i = 0; i < out.k.size(); ++i) {
    num_k += !std::isnan(out.k[i]);
    num_v += !std::isnan(out.v[i]);
    CHECK(written[i] == !std::isnan(out.v[i]));
  }
  CHECK(num_k == num_v);
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
    }
  });
}

TEST_CASE("a token's result is bit-identical alone, in a batch, with 1 to 3 threads, and on targets of one kind") {
  constexpr Shape kShape{9, 3, 64, 16};
  constexpr int32_t kTokens = 150;
  ThreadPool one(1), three(3);
  std::vector<int32_t> positions(kTokens), slots(kTokens);
  std::iota(positions.begin(), positions.end(), 100);
  for (int32_t t = 0; t < kTokens; ++t) slots[t] = (t * 7) % (kNumBlocks * 16);
  const std::vector<float> qkv = random_normal(kTokens * kShape.row_floats(), 2);
  std::map<bool, Output> first;
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    const Output whole = run(kShape, qkv, positions, slots, one), threaded = run(kShape, qkv, positions, slots, three);
    CHECK(same_bytes(whole.qkv, threaded.qkv));
    CHECK(same_bytes(whole.k, threaded.k));
    CHECK(same_bytes(whole.v, threaded.v));
    for (int32_t t = 0; t < kTokens; t += 11) {
      const int64_t n = kShape.row_floats();
      const Output alone = run(kShape, std::span(qkv).subspan(t * n, n), {&positions[t], 1}, {&slots[t], 1}, one);
      CHECK(same_bytes(alone.qkv, std::span(whole.qkv).subspan(t * n, n)));
      for (size_t i = 0; i < alone.k.size(); ++i)
        if (!std::isnan(alone.k[i])) CHECK(alone.k[i] == whole.k[i]);
    }
    const auto [it, is_first] = first.emplace(test::has_fused_multiply_add(target), whole);
    if (!is_first) CHECK((same_bytes(it->second.qkv, whole.qkv) && same_bytes(it->second.k, whole.k)));
  });
}

TEST_CASE("no tokens is nothing to do, and a cache of another shape is refused") {
  ThreadPool pool(1);
  run({4, 2, 64, 16}, {}, {}, {}, pool);
  const KvCacheView kv{nullptr, nullptr, 16, 2, 64};
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
