// linear with activations rounded to bf16: in fp32, by dot products of pairs, and by tiles where the machine has them.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "base/float_formats.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/arithmetic.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/linear_task.h"
#include "tests/support/compare.h"
#include "tests/support/kernel_support.h"
#include "tests/support/odd_sums.h"

namespace llmb::cpu {
namespace {

using test::for_each_simd_target;
using test::GuardedFloats;
using test::random_normal;
using test::same_bytes;

struct Weight {
  std::vector<uint16_t> halves;
  std::vector<float> bias;
  PackedLinear packed;

  Weight(int64_t n, int64_t k, bool with_bias, ThreadPool& pool) {
    for (const float x : random_normal(n * k, 1)) halves.push_back(f32_to_bf16(x));
    if (with_bias) bias = random_normal(n, 7);
    const TensorView w{halves.data(), DType::kBF16, n, k}, b{bias.data(), DType::kF32, 1, n};
    packed = PackedLinear::pack({&w, 1}, std::span(&b, with_bias ? 1 : 0), pool, Quantization::kNone, DType::kBF16);
    CHECK(packed.rounds_x());
  }
};

std::vector<float> run(const PackedLinear& w, const std::vector<float>& x, int64_t rows, ThreadPool& pool) {
  GuardedFloats out(rows * w.out_features());
  linear(w, x.data(), rows, out.data(), pool);
  CHECK(out.guards_untouched());
  return out.copy();
}

// By AVX-512-BF16's dot products or ARM's BFMMLA, whole panels or halves at a time; nothing where the machine has none.
std::vector<float> run_dots(const PackedLinear& w, const std::vector<float>& x, int64_t rows, int64_t columns) {
  const int64_t k = w.in_features(), stride = bf16_row_bytes(k);
  std::vector<uint8_t> halves(static_cast<size_t>(rows * stride));
  for (int64_t r = 0; r < rows; ++r) bf16_row(x.data() + r * k, k, halves.data() + r * stride);
  GuardedFloats out(rows * w.out_features());
  LinearTask t{&w, nullptr, halves.data(), nullptr, nullptr, w.out_features(), 0, 0, columns, 0, 0, nullptr};
  for (t.panel = 0; t.panel < w.num_panels(); ++t.panel)
    for (t.column_begin = 0; t.column_begin < PackedLinear::kPanelWidth; t.column_begin += columns)
      for (t.row_begin = 0; t.row_begin < rows; t.row_begin = t.row_end) {
        t.row_end = std::min(rows, t.row_begin + kLinearTaskRows);
        t.column_end = t.column_begin + columns;
        t.out = out.data() + t.row_begin * t.out_stride + t.panel * PackedLinear::kPanelWidth;
        if (!bf16_dot_task(t)) return {};
      }
  CHECK(out.guards_untouched());
  return out.copy();
}

void check_product(int64_t m, int64_t n, int64_t k, bool with_bias, ThreadPool& pool) {
  const Weight weight(n, k, with_bias, pool);
  const std::vector<float> x = random_normal(m * k, 3);
  std::vector<double> expected;
  std::vector<float> naive;
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t c = 0; c < n; ++c) {
      double exact = 0;
      float single = 0;
      for (int64_t i = 0; i < k; ++i) {
        const float a = bf16_to_f32(f32_to_bf16(x[r * k + i])), b = bf16_to_f32(weight.halves[c * k + i]);
        exact += double(a) * double(b);
        single += a * b;
      }
      expected.push_back(exact + (with_bias ? weight.bias[c] : 0));
      naive.push_back(single + (with_bias ? weight.bias[c] : 0));
    }
  }
  CAPTURE(m);
  CAPTURE(n);
  CAPTURE(k);
  const double limit = 2 * test::relative_error(naive, expected) + 3e-7;
  const std::vector<float> actual = run(weight.packed, x, m, pool);
  CHECK(test::relative_error(actual, expected) <= limit);
  for (const int64_t columns : {64, 32}) {
    const std::vector<float> dots = run_dots(weight.packed, x, m, columns);
    if (dots.empty()) continue;
    CHECK(test::relative_error(dots, expected) <= limit);
    if (!has_amx()) CHECK(same_bytes(dots, actual));
  }
}

}  // namespace

TEST_CASE("products of rounded rows are as close to fp64 as naive ones; dot products have the bytes of fp32's") {
  ThreadPool pool(2);
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const int64_t m : {0, 1, 2, 3, 5, 6, 7, 11, 12, 13, 36, 37}) check_product(m, 65, 67, true, pool);
    for (const int64_t n : {1, 15, 17, 32, 33, 63, 64, 127, 129})
      for (const int64_t m : {1, 8, 40}) check_product(m, n, 130, n % 2 == 1, pool);
    for (const int64_t k : {1, 2, 3, 31, 32, 33, 63, 64, 65, 191, 192, 193, 319, 320, 321, 385, 639, 640, 641, 1283})
      for (const int64_t m : {1, 8, 40}) check_product(m, 66, k, false, pool);
    for (const int64_t m : {127, 128, 129, 257}) check_product(m, 3, 33, true, pool);
  });
}

TEST_CASE("sums rounded to odd: exact ones stay, others end in a set bit; subnormals are zero, too large is infinite") {
  using test::odd_dot, test::odd_product, test::odd_sum;
  const float inf = INFINITY, tiny = 0x1p-126f;
  CHECK(odd_sum(1, 2) == 3);
  CHECK(odd_sum(1, 0x1p-24f) == 0x1.000002p0f);
  CHECK(odd_sum(1, 0x1p-80f) == 0x1.000002p0f);
  CHECK(odd_sum(1, -0x1p-80f) == 0x1.fffffep-1f);
  CHECK(odd_sum(-1, 0x1p-80f) == -0x1.fffffep-1f);
  CHECK(odd_sum(0x1.000002p0f, 0x1p-80f) == 0x1.000002p0f);
  CHECK(odd_sum(0x1.000004p0f, -0x1p-25f) == 0x1.000002p0f);
  CHECK(odd_sum(0x1.fffffep127f, 0x1.fffffep127f) == inf);
  CHECK(odd_sum(0x1.fffffep127f, 1) == 0x1.fffffep127f);
  CHECK(odd_sum(3 * tiny, -2.5f * tiny) == 0);
  CHECK(odd_sum(tiny / 2, tiny) == tiny);
  CHECK(odd_product(tiny, -0.5f) == 0);
  CHECK(std::signbit(odd_product(tiny, -0.5f)));
  CHECK(odd_product(0x1p127f, -2) == -inf);
  CHECK(odd_product(tiny / 2, 0x1p100f) == 0);
  CHECK(std::signbit(odd_sum(-0.0f, -0.0f)));
  CHECK_FALSE(std::signbit(odd_sum(1, -1)));
  CHECK(std::isnan(odd_sum(inf, -inf)));
  CHECK(std::isnan(odd_product(inf, tiny / 2)));
  CHECK(odd_dot(1, 3, 5, 7, -2) == 2);
}

TEST_CASE("BFMMLA's products are those of its definition, bit for bit") {
  if (!can_compute(Arithmetic::kBf16Mmla)) return;
  ThreadPool pool(2);
  const auto scaled = [](float x, int64_t i) {  // some as large or small as they get
    const float scales[] = {1, 1, 1, 0x1p70f, 0x1p-70f, 0x1p-126f, 0};
    return x * scales[i % 7];
  };
  for (const int64_t k : {1, 2, 3, 4, 5, 6, 31, 64, 66, 193, 770}) {
    for (const bool is_wild : {false, true}) {
      CAPTURE(k);
      CAPTURE(is_wild);
      constexpr int64_t kN = 67, kRows = 9;
      Weight weight(kN, k, true, pool);
      std::vector<float> x = random_normal(kRows * k, 3);
      if (is_wild) {
        for (int64_t i = 0; i < kN * k; ++i)
          weight.halves[i] = f32_to_bf16(scaled(bf16_to_f32(weight.halves[i]), i / 3));
        for (int64_t i = 0; i < kRows * k; ++i) x[i] = scaled(x[i], i / 5);
        // Their product is infinite, and NaN where a number of x that belongs to the next block meets a weight of zero.
        for (int64_t i = 0; i < k; ++i) weight.halves[5 * k + i] = f32_to_bf16(1), x[8 * k + i] = INFINITY;
        const TensorView w{weight.halves.data(), DType::kBF16, kN, k}, b{weight.bias.data(), DType::kF32, 1, kN};
        weight.packed = PackedLinear::pack({&w, 1}, {&b, 1}, pool, Quantization::kNone, DType::kBF16);
      }
      std::vector<float> expected;
      const auto at = [&](const uint16_t* halves, int64_t i) { return i < k ? bf16_to_f32(halves[i]) : 0; };
      for (int64_t r = 0; r < kRows; ++r) {
        std::vector<uint16_t> row;
        for (int64_t i = 0; i < k; ++i) row.push_back(f32_to_bf16(x[r * k + i]));
        for (int64_t c = 0; c < kN; ++c) {
          const uint16_t* const w = weight.halves.data() + c * k;
          float sum = 0;
          for (int64_t i = 0; i < ceil_div(k, 4) * 4; i += 2)
            sum = test::odd_dot(sum, at(row.data(), i), at(w, i), at(row.data(), i + 1), at(w, i + 1));
          expected.push_back(sum + weight.bias[c]);
        }
      }
      for (const int64_t rows : {1, 2, 3, 6, 7, 9}) {
        const std::span some = std::span(expected).first(rows * kN);
        for (const int64_t columns : {64, 32, 16}) CHECK(same_bytes(run_dots(weight.packed, x, rows, columns), some));
      }
    }
  }
}

TEST_CASE("a row's product is bit-identical alone and in any batch, and on every target that fuses") {
  ThreadPool one(1), three(3);
  constexpr int64_t kRows = 140, kN = 70, kK = 715;
  const Weight weight(kN, kK, true, three);
  const std::vector<float> x = random_normal(kRows * kK, 6);
  std::vector<float> first;
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    const std::vector<float> whole = run(weight.packed, x, kRows, one);
    if (test::has_fused_multiply_add(target) && !has_amx()) {
      if (first.empty()) first = whole;
      CHECK(same_bytes(whole, first));
    }
    CHECK(same_bytes(whole, run(weight.packed, x, kRows, three)));
    for (const int64_t chunk : {1, 2, 5, 7, 13, 32, 37, 100}) {
      for (int64_t begin = 0; begin + chunk <= kRows; begin += chunk) {
        const std::vector<float> part(x.begin() + begin * kK, x.begin() + (begin + chunk) * kK);
        CHECK(same_bytes(std::span(whole).subspan(begin * kN, chunk * kN), run(weight.packed, part, chunk, three)));
      }
    }
  });
}

TEST_CASE("rows are rounded to the nearest bf16, ties to even, in either form; NaN and infinities stay") {
  std::vector<float> x = random_normal(70, 9);
  x.insert(x.end(), {0.0f, -0.0f, 1.00390625f, 1.01171875f, -1.00390625f, 3.4e38f, INFINITY, -INFINITY, NAN, 1e-40f});
  const auto n = static_cast<int64_t>(x.size());
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    std::vector<uint8_t> halves(static_cast<size_t>(bf16_row_bytes(n)) + 8, 0xab), row(halves.size() * 2 + 64, 0xab);
    bf16_row(x.data(), n, halves.data());
    round_row(x.data(), n, row.data());
    for (int64_t i = 0; i < n; ++i) {
      uint16_t bits;
      std::memcpy(&bits, halves.data() + 2 * i, 2);
      if (std::isnan(x[i])) CHECK(std::isnan(bf16_to_f32(bits)));
      else CHECK(bits == f32_to_bf16(x[i]));
      if (has_fast_bf16()) continue;
      float value;
      std::memcpy(&value, row.data() + 4 * i, 4);
      CHECK((std::isnan(x[i]) ? std::isnan(value) : value == bf16_to_f32(f32_to_bf16(x[i]))));
    }
    for (int64_t i = 2 * n; i < bf16_row_bytes(n); ++i) CHECK(halves[i] == 0);
    for (size_t i = halves.size() - 8; i < halves.size(); ++i) CHECK(halves[i] == 0xab);
    CHECK(row[static_cast<size_t>(rounded_row_bytes(n))] == 0xab);
  });
}

TEST_CASE("a row with NaN or an infinity gives none to other rows; weights that are not bf16 leave x as it is") {
  ThreadPool pool(2);
  const Weight weight(66, 70, false, pool);
  std::vector<float> x = random_normal(3 * 70, 2);
  const std::vector<float> before = run(weight.packed, x, 3, pool);
  x[70 + 5] = NAN;
  const std::vector<float> after = run(weight.packed, x, 3, pool);
  for (int64_t c = 0; c < 66; ++c) {
    CHECK(after[c] == before[c]);
    CHECK(std::isnan(after[66 + c]));
    CHECK(after[132 + c] == before[132 + c]);
  }
  const std::vector<float> floats = random_normal(66 * 70, 1);
  const TensorView view{floats.data(), DType::kF32, 66, 70};
  CHECK(!PackedLinear::pack({&view, 1}, {}, pool, Quantization::kNone, DType::kBF16).rounds_x());
  const TensorView half{weight.halves.data(), DType::kBF16, 66, 70};
  CHECK(!PackedLinear::pack({&half, 1}, {}, pool, Quantization::kInt8, DType::kBF16).rounds_x());
}

}  // namespace llmb::cpu
