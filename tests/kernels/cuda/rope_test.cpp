#include "kernels/cuda/rope.h"

#include <doctest/doctest.h>

#include <cmath>
#include <numeric>

#include "base/check.h"
#include "tests/support/compare.h"
#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"

namespace llmb::cuda {
namespace {

using test::converted;
using test::DeviceArray;
using test::random_normal;

constexpr int32_t kMaxPosition = 300;
constexpr int32_t kNumBlocks = 5;

int64_t row_size(const RopeShape& s) { return s.row_width(); }
int64_t block_stride(const RopeShape& s) {
  return s.block_stride > 0 ? s.block_stride : int64_t{s.num_kv_heads} * s.block_size * s.head_dim;
}
int64_t pool_size(const RopeShape& s) { return kNumBlocks * block_stride(s); }

template <class T>
struct Output {
  std::vector<T> qkv, k, v;

  bool operator==(const Output& other) const {
    const auto same = [](const std::vector<T>& a, const std::vector<T>& b) {
      return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
    };
    return same(qkv, other.qkv) && same(k, other.k) && same(v, other.v);
  }
};

// Pools start filled with 99.
template <class T>
Output<T> run(const RopeShape& s, std::span<const T> qkv, const std::vector<int32_t>& positions,
              const std::vector<int32_t>& slots) {
  std::vector<float> cos, sin;
  for (int position = 0; position < kMaxPosition; ++position) {
    for (int i = 0; i < s.rotary_dim / 2; ++i) {
      const double angle = position * std::pow(10000.0, -2.0 * i / s.rotary_dim);
      cos.push_back(static_cast<float>(std::cos(angle)));
      sin.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  const std::vector<T> empty(static_cast<size_t>(pool_size(s)), from_float<T>(99));
  DeviceArray<T> x(qkv), k(empty), v(empty);
  DeviceArray<float> c(cos), si(sin);
  DeviceArray<int32_t> p(positions), sl(slots);
  rope_and_kv_write(x.data(), p.data(), sl.data(), static_cast<int64_t>(positions.size()), s, c.data(), si.data(),
                    k.data(), v.data(), nullptr);
  for (const auto* array : {&x, &k, &v}) CHECK(array->check_guards());
  CHECK(c.holds(cos));
  CHECK(si.holds(sin));
  CHECK(p.holds(positions));
  CHECK(sl.holds(slots));
  return {x.download(), k.download(), v.download()};
}

// Channel i of a head at `position`, in fp64, rotate-half convention.
template <class T>
double rotated(const RopeShape& s, const T* head, int32_t position, int32_t i) {
  if (i >= s.rotary_dim) return to_float(head[i]);
  const int32_t half = s.rotary_dim / 2;
  const double angle = position * std::pow(10000.0, -2.0 * (i % half) / s.rotary_dim);
  return i < half ? to_float(head[i]) * std::cos(angle) - to_float(head[i + half]) * std::sin(angle)
                  : to_float(head[i]) * std::cos(angle) + to_float(head[i - half]) * std::sin(angle);
}

template <class T>
void check_shape(const RopeShape& s) {
  CAPTURE(s.num_heads);
  CAPTURE(s.num_kv_heads);
  CAPTURE(s.head_dim);
  CAPTURE(s.rotary_dim);
  CAPTURE(s.block_size);
  // First and last position, first and last slot, both sides of a block's border; one padded token.
  const std::vector<int32_t> positions = {0, 1, kMaxPosition - 1, 17, 0, 8};
  const std::vector<int32_t> slots = {s.block_size,     0,  kNumBlocks * s.block_size - 1,
                                      s.block_size - 1, -1, 3 * s.block_size + 1};
  const auto tokens = static_cast<int32_t>(positions.size());
  const std::vector<T> qkv = converted<T>(random_normal(tokens * row_size(s), 7));
  const Output<T> out = run<T>(s, qkv, positions, slots);

  std::vector<T> qkv_expected = qkv, v_expected(out.v.size(), from_float<T>(99));
  std::vector<bool> k_written(out.k.size());
  std::vector<float> rotations;
  std::vector<double> expected;
  for (int32_t t = 0; t < tokens; ++t) {
    if (slots[t] < 0) continue;
    const T* row = qkv.data() + t * row_size(s);
    for (int32_t h = 0; h < row_size(s) / s.head_dim; ++h) {
      const T* head = row + h * s.head_dim;
      const int32_t kv_head = (h - s.num_heads) % std::max(s.num_kv_heads, 1);
      const int64_t slot_at =
          slots[t] / s.block_size * block_stride(s) +
          (int64_t{kv_head} * s.block_size + slots[t] % s.block_size) * s.head_dim;
      for (int32_t i = 0; i < s.head_dim; ++i) {
        if (h >= s.num_heads + s.num_kv_heads) {
          v_expected[slot_at + i] = head[i];
          continue;
        }
        const int64_t at = t * row_size(s) + h * s.head_dim + i;
        const T result = h < s.num_heads ? out.qkv[at] : out.k[slot_at + i];
        if (h < s.num_heads) qkv_expected[at] = result;
        else k_written[slot_at + i] = true;
        rotations.push_back(to_float(result));
        expected.push_back(rotated(s, head, positions[t], i));
      }
    }
  }
  CHECK(Output<T>{out.qkv, {}, out.v} == Output<T>{qkv_expected, {}, v_expected});
  for (size_t i = 0; i < out.k.size(); ++i)
    if (!k_written[i]) REQUIRE(to_float(out.k[i]) == 99);
  std::vector<float> rounded;
  for (const double x : expected) rounded.push_back(to_float(from_float<T>(static_cast<float>(x))));
  CHECK(test::relative_error(rotations, expected) <= 2 * test::relative_error(rounded, expected) + 2e-7);
}

}  // namespace

TEST_CASE_TEMPLATE(
    "q is rotated in place, k into its slot, v copied; nothing else is touched, nothing for a padded token", T, float,
    __nv_bfloat16, __half) {
  for (const int32_t head_dim : {64, 80, 96, 128, 256})
    check_shape<T>({8, 2, head_dim, head_dim, head_dim == 128 ? 32 : 16});
  for (const int32_t head_dim : {2, 8, 10, 72, 100}) check_shape<T>({3, 1, head_dim, head_dim, 8});
  check_shape<T>({40, 40, 64, 64, 8});
  check_shape<T>({71, 1, 64, 64, 16});
}

TEST_CASE_TEMPLATE("only the first rotary_dim channels are rotated", T, float, __nv_bfloat16, __half) {
  check_shape<T>({4, 2, 80, 32, 16});
  check_shape<T>({4, 2, 64, 2, 16});
  check_shape<T>({4, 2, 64, 0, 16});
  check_shape<T>({2, 2, 96, 80, 8});
  check_shape<T>({2, 2, 12, 6, 8});
  CHECK_THROWS_AS(check_shape<T>({2, 2, 64, 66, 8}), CheckFailure);
  CHECK_THROWS_AS(check_shape<T>({2, 2, 64, 3, 8}), CheckFailure);
}

TEST_CASE_TEMPLATE("blocks apart, keys without values, and queries, or keys and values, alone", T, float, __nv_bfloat16) {
  check_shape<T>({4, 2, 64, 64, 16, 4096});
  check_shape<T>({3, 1, 10, 10, 8, 83});
  check_shape<T>({4, 1, 96, 64, 16, 0, false});
  check_shape<T>({4, 1, 22, 6, 8, 200, false});
  check_shape<T>({4, 0, 64, 32, 16});
  check_shape<T>({4, 0, 64, 32, 16, 4096});
  check_shape<T>({0, 2, 64, 32, 16});
  check_shape<T>({0, 1, 96, 64, 16, 4096, false});
}

TEST_CASE("keys and values alone have the bits that they have behind queries") {
  const RopeShape shape{6, 2, 64, 48, 16}, alone{0, 2, 64, 48, 16};
  const std::vector<int32_t> positions = {3, 299, 0}, slots = {17, 0, 5};
  const std::vector<__nv_bfloat16> qkv = converted<__nv_bfloat16>(random_normal(3 * row_size(shape), 5));
  std::vector<__nv_bfloat16> kv;
  for (int64_t t = 0; t < 3; ++t)
    kv.insert(kv.end(), qkv.begin() + t * row_size(shape) + 6 * 64, qkv.begin() + (t + 1) * row_size(shape));
  const Output<__nv_bfloat16> behind = run<__nv_bfloat16>(shape, qkv, positions, slots);
  const Output<__nv_bfloat16> without = run<__nv_bfloat16>(alone, kv, positions, slots);
  CHECK(without == Output<__nv_bfloat16>{kv, behind.k, behind.v});
  RopeShape in_place = alone;  // where they lie behind queries
  in_place.row_stride = row_size(shape);
  const std::vector<__nv_bfloat16> from_keys(qkv.begin() + 6 * 64, qkv.end());
  CHECK(run<__nv_bfloat16>(in_place, from_keys, positions, slots) ==
        Output<__nv_bfloat16>{from_keys, behind.k, behind.v});
}

TEST_CASE(
    "a token's rotation is bit-identical alone and in a batch, whatever the order of threads; no tokens, no work") {
  const RopeShape shape{8, 2, 64, 64, 16};
  constexpr int32_t kTokens = 9;
  const std::vector<__nv_bfloat16> qkv = converted<__nv_bfloat16>(random_normal(kTokens * row_size(shape), 3));
  std::vector<int32_t> positions(kTokens), slots(kTokens);
  std::iota(positions.begin(), positions.end(), 31);
  std::iota(slots.rbegin(), slots.rend(), 20);
  const Output<__nv_bfloat16> whole = run<__nv_bfloat16>(shape, qkv, positions, slots);
  test::for_each_order(3, [&](uint64_t) {
    CHECK(run<__nv_bfloat16>(shape, qkv, positions, slots) == whole);
    for (int32_t t = 0; t < kTokens; ++t) {
      const auto begin = static_cast<size_t>(t * row_size(shape)), size = static_cast<size_t>(row_size(shape));
      const Output<__nv_bfloat16> alone =
          run<__nv_bfloat16>(shape, std::span(qkv).subspan(begin, size), {positions[t]}, {slots[t]});
      CHECK(std::memcmp(alone.qkv.data(), whole.qkv.data() + begin, size * sizeof(__nv_bfloat16)) == 0);
    }
  });
  run<__nv_bfloat16>(shape, {}, {}, {});
}

}  // namespace llmb::cuda
