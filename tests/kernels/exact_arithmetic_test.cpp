// Products and norms bit for bit against scalar code: std::fma in the order that linear.h and norm.h promise, on targets
// that fuse; product and sum, each rounded, on those that do not. It holds for processors of any make, so that one gives
// the bytes of another.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/float_formats.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/number_panels.h"
#include "tests/support/cpu_targets.h"
#include "tests/support/kernel_support.h"

namespace llmb::cpu {
namespace {

using test::for_each_cpu_target;
using test::random_normal;
using test::same_bytes;

// a * b + c as a target computes it.
float multiply_add(bool is_fused, float a, float b, float c) {
  if (is_fused) return std::fma(a, b, c);
  const volatile float product = a * b;
  return product + c;
}

struct Product {
  int64_t rows, n, k;
  std::vector<float> x = random_normal(rows * k, 7, 3);
  std::vector<uint16_t> weights = {};  // bf16, [n, k]
  std::vector<float> bias = random_normal(n, 8);

  Product(int64_t rows_, int64_t n_, int64_t k_) : rows(rows_), n(n_), k(k_) {
    for (const float w : random_normal(n * k, 9)) weights.push_back(f32_to_bf16(w));
  }
  float weight(int64_t feature, int64_t i) const { return bf16_to_f32(weights[feature * k + i]); }
  PackedLinear pack(ThreadPool& pool, Quantization quantization, DType activations = DType::kF32) const {
    const TensorView part = {weights.data(), DType::kBF16, n, k}, bias_part = {bias.data(), DType::kF32, 1, n};
    return PackedLinear::pack({&part, 1}, {&bias_part, 1}, pool, quantization, activations);
  }
};

// expected(is_fused, row, feature): the element, without bias.
template <typename Expected>
void check(const Product& p, const PackedLinear& packed, ThreadPool& pool, const Expected& expected) {
  for_each_cpu_target([&](const std::string& target) {
    CAPTURE(target);
    const bool is_fused = test::has_fused_multiply_add(target);
    std::vector<float> out(p.rows * p.n), wanted;
    linear(packed, p.x.data(), p.rows, out.data(), pool);
    for (int64_t r = 0; r < p.rows; ++r)
      for (int64_t f = 0; f < p.n; ++f) wanted.push_back(expected(is_fused, r, f) + p.bias[f]);
    CHECK(same_bytes(out, wanted));
  });
}

// One row, a tile, a few of them; narrow and whole panels; k with and without rests, and of more than a block.
const std::vector<Product>& products() {
  static const std::vector<Product> all = {{1, 64, 64},   {1, 40, 33},  {2, 128, 96}, {3, 64, 5},
                                           {7, 100, 131}, {13, 64, 70}, {30, 72, 700}};
  return all;
}

void check_int8_rows(Quantization quantization) {
  ThreadPool pool(2);
  constexpr int64_t kWidth = PackedLinear::kPanelWidth;
  for (const Product& p : products()) {
    CAPTURE(p.k);
    const PackedLinear packed = p.pack(pool, quantization);
    const auto stored = [&](int64_t f, int64_t i) {
      const uint8_t* panel = packed.panel(f / kWidth);
      const auto number = quantization == Quantization::kInt8 ? int8_number : w4a8_number;
      return number(panel, i, f % kWidth);
    };
    bool is_nearest = true;
    for (int64_t f = 0; f < p.n; ++f)
      for (int64_t i = 0; i < p.k; ++i)
        is_nearest &= std::fabs(stored(f, i) * packed.scales()[f] - p.weight(f, i)) <= packed.scales()[f] * 0.501f;
    if (quantization == Quantization::kInt8) CHECK(is_nearest);
    const auto scale_of = [](float largest) { return largest / 127; };
    const auto rounded = [](float x, float largest) { return std::nearbyint(x * (127 / largest)); };
    check(p, packed, pool, [&](bool, int64_t r, int64_t f) {
      float largest_x = 0;
      for (int64_t i = 0; i < p.k; ++i) largest_x = std::max(largest_x, std::fabs(p.x[r * p.k + i]));
      int64_t sum = 0;
      for (int64_t i = 0; i < p.k; ++i)
        sum += stored(f, i) * static_cast<int64_t>(rounded(p.x[r * p.k + i], largest_x));
      return static_cast<float>(sum) * packed.scales()[f] * scale_of(largest_x);
    });
  }
}

}  // namespace

TEST_CASE("float products are one chain of multiply-adds over k") {
  ThreadPool pool(2);
  for (const Product& p : products()) {
    CAPTURE(p.k);
    check(p, p.pack(pool, Quantization::kNone), pool, [&](bool is_fused, int64_t r, int64_t f) {
      float sum = 0;
      for (int64_t i = 0; i < p.k; ++i) sum = multiply_add(is_fused, p.x[r * p.k + i], p.weight(f, i), sum);
      return sum;
    });
  }
}

TEST_CASE("int8 and w4a8 products are exact sums of rounded numbers, then two products in fp32") {
  check_int8_rows(Quantization::kInt8);
  check_int8_rows(Quantization::kW4A8);
}

TEST_CASE("int4 products are a chain for each group of k, and a chain of groups") {
  ThreadPool pool(2);
  constexpr int64_t kWidth = PackedLinear::kPanelWidth, kGroup = PackedLinear::kInt4Group;
  constexpr int64_t kWordsBytes = kGroup * kWidth / 2, kGroupBytes = kWordsBytes + 2 * kWidth;
  for (const Product& p : products()) {
    CAPTURE(p.k);
    const PackedLinear packed = p.pack(pool, Quantization::kInt4);
    check(p, packed, pool, [&](bool is_fused, int64_t r, int64_t f) {
      const uint8_t* panel = packed.panel(f / kWidth);
      float sum = 0;
      for (int64_t group = 0; group < p.k; group += kGroup) {
        const uint8_t* at = panel + group / kGroup * kGroupBytes;
        float chain = 0;
        for (int64_t i = group; i < std::min(p.k, group + kGroup); ++i) {
          uint32_t word;
          std::memcpy(&word, at + ((i - group) / 8 * kWidth + f % kWidth) * 4, 4);
          const uint32_t bits = word >> (4 * (i % 8)) & 15;
          const auto w = static_cast<float>(bits < 8 ? static_cast<int>(bits) : static_cast<int>(bits) - 16);
          chain = multiply_add(is_fused, p.x[r * p.k + i], w, chain);
        }
        uint16_t scale;
        std::memcpy(&scale, at + kWordsBytes + f % kWidth * 2, 2);
        sum = multiply_add(is_fused, bf16_to_f32(scale), chain, sum);
      }
      return sum;
    });
  }
}

TEST_CASE("RMS norm adds squares in 16 lanes, and folds them upper half onto lower half") {
  ThreadPool pool(1);
  for (const int64_t hidden : {1, 15, 16, 17, 64, 333}) {
    const std::vector<float> x = random_normal(hidden, 4, 2), weight = random_normal(hidden, 5);
    for_each_cpu_target([&](const std::string& target) {
      CAPTURE(target);
      float lanes[16] = {};
      for (int64_t i = 0; i < hidden; ++i)
        lanes[i % 16] = multiply_add(test::has_fused_multiply_add(target), x[i], x[i], lanes[i % 16]);
      for (int half = 8; half >= 1; half /= 2)
        for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
      const float scale = 1.0f / std::sqrt(lanes[0] / static_cast<float>(hidden) + 1e-5f);
      std::vector<float> wanted, residual = x, out(hidden);
      for (int64_t i = 0; i < hidden; ++i) wanted.push_back(x[i] * scale * weight[i]);
      add_rms_norm(residual.data(), nullptr, weight.data(), 1e-5f, 1, hidden, out.data(), pool);
      CHECK(same_bytes(out, wanted));
    });
  }
}

}  // namespace llmb::cpu
