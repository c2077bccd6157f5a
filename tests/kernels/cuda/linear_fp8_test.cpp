// linear_fp8 and quantize_rows to e4m3 beside fp64 references.
#include "kernels/cuda/linear_fp8.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cuda/quantize_rows.h"
#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"
#include "tests/support/kv_bytes.h"

namespace llmb::cuda {
namespace {

using test::DeviceArray;
using test::random_normal;

constexpr int32_t kNumSms = 3;  // of the tests' devices, so that sums over k are cut in several ways

// Rows of e4m3, made on the device.
struct Quantized {
  template <class T>
  Quantized(const std::vector<T>& x, int64_t rows, int64_t width)
      : codes(static_cast<size_t>(rows * fp8::row_bytes(width))), scales(static_cast<size_t>(rows)) {
    const DeviceArray<T> from(x);
    quantize_rows(from.data(), rows, width, codes.data(), scales.data(), nullptr);
    CHECK((codes.check_guards() && scales.check_guards()));
  }
  DeviceArray<E4m3> codes;
  DeviceArray<float> scales;
};

// [features, k], with the numbers that its codes mean without scales.
struct Weight {
  Weight(int64_t out_features, int64_t in_features, uint32_t seed = 2)
      : features(out_features), k(in_features), rows(random_normal(features * k, seed), features, k) {
    for (const E4m3 code : rows.codes.download()) stored.push_back(fp8_e4m3_to_f32(code.bits));
    scales = rows.scales.download();
  }
  float number(int64_t feature, int64_t i) const {
    return stored[feature * fp8::row_bytes(k) + i / 64 * 64 + fp8::place_of(static_cast<int>(i % 64))];
  }
  Fp8View view(const void* bias = nullptr) { return {rows.codes.data(), rows.scales.data(), bias, features, k}; }

  int64_t features, k;
  Quantized rows;
  std::vector<float> stored, scales;
};

template <class T>
struct Product {
  Product(int64_t num_rows, int64_t k, int64_t features)
      : rows(num_rows),
        x(test::converted<T>(random_normal(rows * k, 1))),
        bias(test::converted<T>(random_normal(features, 3))) {}

  template <class Out>
  std::vector<float> run(LinearFp8& linear, Weight& weight, bool with_bias, int64_t first, int64_t count) const {
    const auto begin = x.begin() + first * weight.k;
    const DeviceArray<T> some(std::vector<T>(begin, begin + count * weight.k)), on_device(bias);
    DeviceArray<Out> out(static_cast<size_t>(count * weight.features));
    linear.run(weight.view(with_bias ? on_device.data() : nullptr), some.data(), count, out.data(), nullptr);
    CHECK(out.check_guards());
    return out.download_floats();
  }
  template <class Out>
  std::vector<float> run(Weight& weight, bool with_bias = true) const {
    LinearFp8 linear({kNumSms}, nullptr);
    return run<Out>(linear, weight, with_bias, 0, rows);
  }

  int64_t rows;
  std::vector<T> x, bias;
};

// At most twice the error of a plain sum in fp32, over all elements.
template <class T>
void check_product(const Product<T>& p, const Weight& weight, const std::vector<float>& actual, bool with_bias) {
  double worst = 0, allowed = 0, largest = 0;
  for (int64_t row = 0; row < p.rows; ++row)
    for (int64_t f = 0; f < weight.features; ++f) {
      const float bias = with_bias ? to_float(p.bias[f]) : 0;
      double exact = 0;
      float naive = 0;
      for (int64_t k = 0; k < weight.k; ++k) {
        const float a = to_float(p.x[row * weight.k + k]), b = weight.number(f, k);
        exact += static_cast<double>(a) * static_cast<double>(b);
        naive += a * b;
      }
      exact = exact * static_cast<double>(weight.scales[f]) + static_cast<double>(bias);
      naive = naive * weight.scales[f] + bias;
      const double error = std::fabs(static_cast<double>(actual[row * weight.features + f]) - exact);
      if (!std::isnan(worst) && !(error <= worst)) worst = error;  // NaN stays
      allowed = std::max(allowed, std::fabs(static_cast<double>(naive) - exact));
      largest = std::max(largest, std::fabs(exact));
    }
  CAPTURE(worst);
  CHECK(worst <= 2 * allowed + 1e-6 * largest);
}

TEST_CASE("every number of a group has a place of its own, and number_at() finds it") {
  std::vector<bool> taken(fp8::kGroup, false);
  for (int k = 0; k < fp8::kGroup; ++k) {
    REQUIRE(!taken[fp8::place_of(k)]);
    taken[fp8::place_of(k)] = true;
    CHECK(fp8::number_at(fp8::place_of(k)) == k);
  }
}

TEST_CASE_TEMPLATE("quantize_rows to e4m3 rounds to the nearest, zeros behind the row", T, float, __nv_bfloat16,
                   __half) {
  for (const int64_t width : {1, 7, 8, 63, 64, 65, 136, 1000}) {
    CAPTURE(width);
    constexpr int64_t kRows = 5;
    std::vector<T> x = test::converted<T>(random_normal(kRows * width, 4));
    for (int64_t i = 0; i < width; ++i) x[width + i] = from_float<T>(0.0f);            // row 1
    x[2 * width + width / 2] = from_float<T>(std::numeric_limits<float>::infinity());  // row 2
    const Quantized quantized(x, kRows, width);
    const std::vector<E4m3> codes = quantized.codes.download();
    const std::vector<float> scales = quantized.scales.download();
    for (int64_t row = 0; row < kRows; ++row) {
      CAPTURE(row);
      std::vector<float> values;
      for (int64_t i = 0; i < width; ++i) values.push_back(to_float(x[row * width + i]));
      const test::ByteRow expected = test::round_to_bytes(DType::kF8, values);
      if (row == 2) CHECK(std::isnan(scales[row]));
      else CHECK(scales[row] == expected.scale);
      for (int64_t k = 0; k < fp8::row_bytes(width); ++k) {
        const int64_t at = row * fp8::row_bytes(width) + k / 64 * 64 + fp8::place_of(static_cast<int>(k % 64));
        REQUIRE(codes[at].bits == (k < width ? expected.bytes[k] : 0));
      }
    }
  }
}

TEST_CASE_TEMPLATE("products have the accuracy of fp32 at every border of rows, features and k", T, __nv_bfloat16,
                   __half) {
  const auto check_sizes = [](int64_t rows, int64_t features, int64_t k) {
    CAPTURE(rows);
    CAPTURE(features);
    CAPTURE(k);
    const Product<T> p(rows, k, features);
    Weight weight(features, k);
    const bool with_bias = rows % 2 == 0;
    check_product(p, weight, p.template run<float>(weight, with_bias), with_bias);
  };
  for (const int64_t rows : {1, 7, 8, 9, 16, 17, 32, 33, 63, 64, 65, 127, 128, 129}) check_sizes(rows, 136, 320);
  for (const int64_t features : {1, 8, 15, 127, 128, 129, 300}) check_sizes(3, features, 128);
  for (const int64_t k : {8, 24, 32, 40, 64, 72, 128, 640, 1032}) check_sizes(10, 130, k);
}

TEST_CASE_TEMPLATE("a row's bits do not depend on the rows beside it; outputs of 16 bits are rounded once", T,
                   __nv_bfloat16, __half) {
  constexpr int64_t kFeatures = 260, kIn = 456, kRows = 150;
  const Product<T> p(kRows, kIn, kFeatures);
  Weight weight(kFeatures, kIn);
  LinearFp8 linear({kNumSms}, nullptr);
  const auto all = p.template run<float>(linear, weight, true, 0, kRows);
  for (const auto& [first, count] : {std::pair{0, 1}, {3, 8}, {5, 9}, {17, 17}, {2, 33}, {6, 64}, {3, 65}, {20, 128}}) {
    const auto some = p.template run<float>(linear, weight, true, first, count);
    CHECK(std::equal(some.begin(), some.end(), all.begin() + first * kFeatures));
  }
  auto expected = all;
  for (float& value : expected) value = to_float(from_float<T>(value));
  CHECK(p.template run<T>(linear, weight, true, 0, kRows) == expected);
}

TEST_CASE("any order of threads and blocks gives the same, and so do rings of few stages and many") {
  using T = __nv_bfloat16;
  const Product<T> p(9, 1000, 200);
  Weight weight(200, 1000);
  LinearFp8 usual({4, 2}, nullptr), short_ring({4, 2, 1}, nullptr), long_ring({8, 1, 200 * 1024}, nullptr);
  const auto expected = p.run<float>(usual, weight, true, 0, 9);
  CHECK(p.run<float>(short_ring, weight, true, 0, 9) == expected);
  CHECK(p.run<float>(long_ring, weight, true, 0, 9) == expected);
  test::for_each_order(3, [&](uint64_t) { CHECK(p.run<float>(usual, weight, true, 0, 9) == expected); });
}

TEST_CASE("grouped rows have the accuracy of fp32, and the same bits in tiles of 16 and of 64 rows") {
  using T = __half;
  constexpr int64_t kFeatures = 140, kIn = 136, kRows = 30;
  const Product<T> p(kRows, kIn, kFeatures);
  Weight a(kFeatures, kIn, 2), b(kFeatures, kIn, 7);
  const DeviceArray<T> x(p.x), bias(p.bias);
  const DeviceArray<const void*> weights(std::vector<const void*>{a.rows.codes.data(), b.rows.codes.data()});
  const DeviceArray<const void*> biases(std::vector<const void*>{bias.data(), bias.data()});
  const DeviceArray<const float*> scales(std::vector<const float*>{a.rows.scales.data(), b.rows.scales.data()});
  GroupedWeights grouped{weights.data(), biases.data(), kFeatures, kIn, scales.data()};
  grouped.is_fp8 = true;
  CHECK(!grouped.is_int8());
  // Rows of x in turn: 20 for the second expert, the others for the first.
  std::vector<int32_t> x_rows;
  for (int32_t i = 0; i < kRows; ++i) x_rows.push_back(kRows - 1 - i);
  const DeviceArray<int32_t> row_ids(x_rows);
  std::vector<float> results[2];
  for (const int32_t tile_rows : {16, 64}) {
    CAPTURE(tile_rows);
    std::vector<RowTile> tiles = {{1, 0, std::min(20, tile_rows)}, {0, 20, 10}, {-1, 0, 0}};
    if (tile_rows == 16) tiles.push_back({1, 16, 4});
    const DeviceArray<RowTile> on_device(tiles);
    DeviceArray<T> out(static_cast<size_t>(kRows * kFeatures));
    linear_grouped_fp8(grouped, x.data(), row_ids.data(), on_device.data(), static_cast<int32_t>(tiles.size()),
                       tile_rows, out.data(), nullptr);
    results[tile_rows / 64] = out.download_floats();
    CHECK(out.check_guards());
  }
  CHECK(results[0] == results[1]);
  const std::vector<float> of_a = p.run<T>(a), of_b = p.run<T>(b);
  for (int64_t row = 0; row < kRows; ++row)
    for (int64_t f = 0; f < kFeatures; ++f) {
      const float expected = (row < 20 ? of_b : of_a)[x_rows[row] * kFeatures + f];
      CHECK(std::fabs(results[0][row * kFeatures + f] - expected) <= 1e-3f * std::fabs(expected) + 1e-4f);
    }
}

TEST_CASE("what is not finite stays in its row or feature") {
  using T = __nv_bfloat16;
  constexpr int64_t kFeatures = 40, kIn = 104;
  std::vector<float> values = random_normal(kFeatures * kIn, 2);
  values[2 * kIn + 99] = std::numeric_limits<float>::infinity();
  Product<T> p(20, kIn, kFeatures);
  p.x[3 * kIn + 7] = from_float<T>(std::numeric_limits<float>::quiet_NaN());
  Weight weight(kFeatures, kIn);
  const Quantized rows(values, kFeatures, kIn);
  weight.rows.codes.upload(rows.codes.download());
  weight.rows.scales.upload(rows.scales.download());
  const auto actual = p.run<float>(weight);
  for (int64_t i = 0; i < 20 * kFeatures; ++i) {
    CAPTURE(i);
    CHECK(std::isnan(actual[i]) == (i / kFeatures == 3 || i % kFeatures == 2));
  }
}

}  // namespace
}  // namespace llmb::cuda
