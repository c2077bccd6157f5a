// rope_and_kv_write into a pool of int8 or e4m3: the CPU's bytes and scales of the numbers that an fp32 pool gets.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "kernels/cpu/kv_cache.h"
#include "kernels/cuda/rope.h"
#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"

namespace llmb::cuda {
namespace {

using test::DeviceArray;
using test::random_normal;

constexpr int32_t kMaxPosition = 40, kNumBlocks = 4;

struct Case {
  RopeShape shape;
  std::vector<int32_t> positions, slots;
  std::vector<float> qkv, cos, sin;

  explicit Case(const RopeShape& s)
      : shape(s),
        positions{0, 1, kMaxPosition - 1, 17, 8},
        slots{s.block_size, 0, kNumBlocks * s.block_size - 1, -1, 2 * s.block_size + 1},
        qkv(random_normal(5 * int64_t{s.num_heads + 2 * s.num_kv_heads} * s.head_dim, 7)) {
    for (int i = 0; i < kMaxPosition * s.rotary_dim / 2; ++i) {
      cos.push_back(std::cos(0.37f * static_cast<float>(i)));
      sin.push_back(std::sin(0.37f * static_cast<float>(i)));
    }
  }
  size_t num_vectors() const { return static_cast<size_t>(kNumBlocks * shape.num_kv_heads * shape.block_size); }
};

// rope_and_kv_write() to pools of either kind; returns qkv afterwards.
template <class T, class... Pools>
std::vector<T> run(const Case& c, Pools... pools) {
  DeviceArray<T> qkv(test::converted<T>(c.qkv));
  const DeviceArray<int32_t> positions(c.positions), slots(c.slots);
  const DeviceArray<float> cos(c.cos), sin(c.sin);
  rope_and_kv_write(qkv.data(), positions.data(), slots.data(), 5, c.shape, cos.data(), sin.data(), pools..., nullptr);
  CHECK(qkv.check_guards());
  return qkv.download();
}

template <class Code>
struct ScaledArrays {
  explicit ScaledArrays(const Case& c)
      : k(c.num_vectors() * static_cast<size_t>(c.shape.head_dim)),
        v(k.size()),
        k_scales(c.num_vectors()),
        v_scales(c.num_vectors()) {}
  ScaledKv<Code> kv() { return {k.data(), v.data(), k_scales.data(), v_scales.data()}; }
  DeviceArray<Code> k, v;
  DeviceArray<float> k_scales, v_scales;
};

uint8_t bits_of(int8_t code) { return static_cast<uint8_t>(code); }
uint8_t bits_of(E4m3 code) { return code.bits; }

bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

template <class Code>
void check_equals_cpu(const Case& c) {
  const RopeShape& s = c.shape;
  CAPTURE(s.head_dim);
  CAPTURE(s.rotary_dim);
  const auto dim = static_cast<size_t>(s.head_dim);
  DeviceArray<float> k(c.num_vectors() * dim), v(k.size());
  const std::vector<float> q = run<float>(c, k.data(), v.data());
  const std::vector<float> rotated = k.download(), values = v.download();
  ScaledArrays<Code> scaled(c);
  const std::vector<float> q_beside_codes = run<float>(c, scaled.kv());
  CHECK(q_beside_codes.size() == q.size());
  for (size_t i = 0; i < q.size(); ++i) REQUIRE(same(q_beside_codes[i], q[i]));
  for (const auto* array : {&scaled.k, &scaled.v}) CHECK(array->check_guards());
  for (const auto* array : {&scaled.k_scales, &scaled.v_scales}) CHECK(array->check_guards());
  const auto k_bytes = scaled.k.download(), v_bytes = scaled.v.download();
  const auto k_scales = scaled.k_scales.download(), v_scales = scaled.v_scales.download();
  cpu::KvCacheView view{nullptr, kCodeOf<Code> == KvCode::kInt8 ? DType::kI8 : DType::kF8, s.block_size, 1, s.head_dim};
  for (const int32_t slot : c.slots) {
    if (slot < 0) continue;
    for (int32_t head = 0; head < s.num_kv_heads; ++head) {
      const size_t at =
          static_cast<size_t>((slot / s.block_size * s.num_kv_heads + head) * s.block_size + slot % s.block_size);
      std::vector<uint8_t> block(static_cast<size_t>(view.block_bytes()));
      view.data = block.data();
      const int64_t offset = slot % s.block_size;
      cpu::write_kv_slot(&rotated[at * dim], &values[at * dim], offset, view);
      CHECK(same(k_scales[at], view.scales(0, 0)[offset]));
      CHECK(same(v_scales[at], view.scales(0, 0)[s.block_size + offset]));
      if (std::isnan(k_scales[at])) continue;  // the bytes mean nothing
      for (size_t i = 0; i < dim; ++i) {
        REQUIRE(bits_of(k_bytes[at * dim + i]) == view.keys(0, 0)[static_cast<int64_t>(i) * s.block_size + offset]);
        REQUIRE(bits_of(v_bytes[at * dim + i]) == view.values(0, 0)[static_cast<size_t>(offset) * dim + i]);
      }
    }
  }
}

TEST_CASE_TEMPLATE("bytes and scales are the CPU's, q is rotated as without them", Code, int8_t, E4m3) {
  for (const RopeShape& shape : {RopeShape{8, 2, 64, 64, 16},
                                 {3, 1, 10, 10, 8},
                                 {2, 2, 80, 32, 16},
                                 {1, 1, 256, 0, 8},
                                 {40, 40, 40, 40, 8},
                                 {2, 1, 5, 2, 8},
                                 {0, 2, 64, 32, 16}})
    check_equals_cpu<Code>(Case(shape));
}

TEST_CASE_TEMPLATE("keys and values that lie behind queries have the same bytes by themselves", Code, int8_t, E4m3) {
  const Case c({4, 2, 64, 64, 16});
  Case alone = c;
  alone.shape.num_heads = 0, alone.shape.row_stride = c.shape.row_width();
  alone.qkv.erase(alone.qkv.begin(), alone.qkv.begin() + 4 * 64);
  ScaledArrays<Code> expected(c), actual(c);
  run<float>(c, expected.kv());
  CHECK(run<float>(alone, actual.kv()) == alone.qkv);
  const auto equal = [](const auto& a, const auto& b) { return a.holds(b.download()); };
  CHECK((equal(actual.k, expected.k) && equal(actual.v, expected.v)));
  CHECK((equal(actual.k_scales, expected.k_scales) && equal(actual.v_scales, expected.v_scales)));
}

TEST_CASE_TEMPLATE("what is not finite has a scale of NaN; what is tiny is zero", Code, int8_t, E4m3) {
  Case c({1, 1, 16, 16, 8});
  c.qkv[16 + 3] = std::numeric_limits<float>::infinity();        // token 0's key
  c.qkv[48 + 32] = std::numeric_limits<float>::quiet_NaN();      // token 1's value
  for (int i = 0; i < 32; ++i) c.qkv[2 * 48 + 16 + i] = 1e-33f;  // token 2's key and value
  check_equals_cpu<Code>(c);
}

TEST_CASE_TEMPLATE("a slot without a token keeps its bytes; 16-bit q is rotated as without them", Code, int8_t, E4m3) {
  const Case c({4, 2, 64, 64, 16});
  ScaledArrays<Code> scaled(c);
  DeviceArray<__nv_bfloat16> k(c.num_vectors() * 64), v(k.size());
  const auto expected = run<__nv_bfloat16>(c, k.data(), v.data()), actual = run<__nv_bfloat16>(c, scaled.kv());
  CHECK(std::memcmp(actual.data(), expected.data(), actual.size() * sizeof(__nv_bfloat16)) == 0);
  const auto scales = scaled.k_scales.download();
  const auto bytes = scaled.v.download();
  size_t num_written = 0;
  for (size_t i = 0; i < scales.size(); ++i) {
    if (!std::isnan(scales[i])) ++num_written;
    else CHECK(bits_of(bytes[i * 64]) == 0xff);
  }
  CHECK(num_written == 4 * 2);
}

}  // namespace
}  // namespace llmb::cuda
