// linear_sparse24 beside an fp64 reference; packing and widening.
#include "kernels/cuda/linear_sparse24.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "kernels/cuda/sparse24_pack.h"
#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"

namespace llmb::cuda {
namespace {

using test::DeviceArray;
using test::random_normal;

// A device of few multiprocessors, so that sums over k are cut in several ways; one block, which cuts none.
constexpr LinearCodesOptions kOptions{3}, kOneBlock{1, 1};

// Random numbers in blocks, any two of every four; of which one in eight is 0, so that none, one or both of two are
// not.
template <class From>
struct Blocks {
  static constexpr BlockFormat kFormat =
      std::is_same_v<From, __half> ? BlockFormat::kSparse24F16 : BlockFormat::kSparse24BF16;

  Blocks(int64_t features, int64_t k) : bytes(static_cast<size_t>(features * k / 32 * 36)) {
    constexpr uint8_t kPairs[] = {3, 5, 9, 6, 10, 12};
    std::mt19937 rng(5);
    const std::vector<float> values = random_normal(features * k / 2, 2);
    for (size_t b = 0; b < bytes.size() / 36; ++b) {
      uint8_t* const block = bytes.data() + b * 36;
      for (int i = 0; i < 4; ++i) block[i] = static_cast<uint8_t>(kPairs[rng() % 6] | kPairs[rng() % 6] << 4);
      for (int i = 0; i < 16; ++i) {
        const From value = from_float<From>(rng() % 8 == 0 ? 0.0f : values[b * 16 + i]);
        std::memcpy(block + 4 + 2 * i, &value, 2);
      }
    }
  }
  std::vector<float> decoded() const {
    std::vector<float> numbers(bytes.size() / 36 * 32);
    for (size_t b = 0; b < bytes.size() / 36; ++b)
      decode_block(kFormat, bytes.data() + b * 36, numbers.data() + b * 32);
    return numbers;
  }
  std::vector<uint8_t> bytes;
};

// [features, k], packed on the device as parts that are stacked.
template <class T>
struct Weight {
  template <class From>
  Weight(int64_t out_features, int64_t in_features, const Blocks<From>& blocks)
      : features(out_features), k(in_features), units(static_cast<size_t>(sparse24::bytes(features, k))) {
    check(cudaMemset(units.data(), sparse24::kEmptyByte, units.size()), "cudaMemset");
    const DeviceArray<uint8_t> from(blocks.bytes);
    const int64_t first = features / 3;
    pack_sparse24<T>(from.data(), blocks.kFormat, first, k, 0, units.data(), nullptr);
    pack_sparse24<T>(from.data() + first * k / 32 * 36, blocks.kFormat, features - first, k, first, units.data(),
                     nullptr);
    CHECK(units.check_guards());
    for (const float x : blocks.decoded()) numbers.push_back(from_float<T>(x));
  }
  Weight(int64_t out_features, int64_t in_features)
      : Weight(out_features, in_features, Blocks<T>(out_features, in_features)) {}

  Sparse24View view(const T* bias = nullptr) const { return {units.data(), bias, features, k}; }

  int64_t features, k;
  DeviceArray<uint8_t> units;
  std::vector<T> numbers;  // that it means
};

template <class T>
struct Product {
  Product(int64_t num_rows, int64_t in_features, int64_t features)
      : rows(num_rows),
        k(in_features),
        x(test::converted<T>(random_normal(rows * k, 1))),
        bias(test::converted<T>(random_normal(features, 3))) {}

  template <class Out>
  std::vector<float> run(LinearSparse24& linear, const Weight<T>& weight, bool with_bias, int64_t first,
                         int64_t count) const {
    const DeviceArray<T> some(std::vector<T>(x.begin() + first * k, x.begin() + (first + count) * k)), on_device(bias);
    DeviceArray<Out> out(static_cast<size_t>(count * weight.features));
    linear.run(weight.view(with_bias ? on_device.data() : nullptr), some.data(), count, out.data(), nullptr);
    CHECK(out.check_guards());
    return out.download_floats();
  }
  template <class Out>
  std::vector<float> run(const Weight<T>& weight, bool with_bias = true,
                         const LinearCodesOptions& options = kOptions) const {
    LinearSparse24 linear(options, nullptr);
    return run<Out>(linear, weight, with_bias, 0, rows);
  }

  int64_t rows, k;
  std::vector<T> x, bias;
};

// Every element finite; at most twice the error of a plain sum in fp32, over all elements.
template <class T>
void check_product(const Product<T>& p, const Weight<T>& weight, const std::vector<float>& actual, bool with_bias) {
  double worst = 0, allowed = 0, largest = 0;
  int64_t not_finite = 0;
  for (int64_t row = 0; row < p.rows; ++row)
    for (int64_t f = 0; f < weight.features; ++f) {
      double exact = with_bias ? static_cast<double>(to_float(p.bias[f])) : 0;
      float naive = static_cast<float>(exact);
      for (int64_t k = 0; k < weight.k; ++k) {
        const float a = to_float(p.x[row * weight.k + k]), b = to_float(weight.numbers[f * weight.k + k]);
        exact += static_cast<double>(a) * static_cast<double>(b);
        naive += a * b;
      }
      const float value = actual[row * weight.features + f];
      if (!std::isfinite(value)) ++not_finite;
      worst = std::max(worst, std::fabs(static_cast<double>(value) - exact));
      allowed = std::max(allowed, std::fabs(static_cast<double>(naive) - exact));
      largest = std::max(largest, std::fabs(exact));
    }
  CHECK(not_finite == 0);
  CAPTURE(worst);
  CHECK(worst <= 2 * allowed + 1e-6 * largest);
}

template <class T>
void check_sizes(int64_t rows, int64_t features, int64_t k) {
  CAPTURE(rows);
  CAPTURE(features);
  CAPTURE(k);
  const Product<T> p(rows, k, features);
  const Weight<T> weight(features, k);
  const bool with_bias = rows % 2 == 1;
  check_product(p, weight, p.template run<float>(weight, with_bias), with_bias);
  check_product(p, weight, p.template run<float>(weight, with_bias, kOneBlock), with_bias);
}

TEST_CASE_TEMPLATE("products have the accuracy of fp32, uncut and in pieces, at every number of rows", T,
                   __nv_bfloat16, __half) {
  for (const int64_t rows : {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200, 257})
    check_sizes<T>(rows, 136, 160);
}

TEST_CASE_TEMPLATE("products at every border of features and k", T, __nv_bfloat16, __half) {
  for (const int64_t features : {1, 7, 15, 16, 17, 127, 128, 129, 300}) check_sizes<T>(3, features, 96);
  for (const int64_t k : {32, 64, 96, 128, 640, 1056}) check_sizes<T>(70, 33, k);
}

template <class From, class To>
void check_numbers(int64_t features, int64_t k) {
  CAPTURE(features);
  CAPTURE(k);
  const Weight<To> weight(features, k, Blocks<From>(features, k));
  DeviceArray<To> out(weight.numbers.size());
  widen_sparse24(weight.view(), out.data(), nullptr);
  CHECK(out.check_guards());
  CHECK(out.holds(weight.numbers));
}

TEST_CASE("numbers are those of decode_block(), bit for bit, rounded where the run's dtype is another") {
  for (const auto& [features, k] : {std::pair{1, 32}, {130, 64}, {40, 96}, {256, 1056}}) {
    check_numbers<__nv_bfloat16, __nv_bfloat16>(features, k);
    check_numbers<__half, __half>(features, k);
    check_numbers<__half, __nv_bfloat16>(features, k);
    check_numbers<__nv_bfloat16, __half>(features, k);
  }
}

TEST_CASE_TEMPLATE("a row's bits do not depend on the rows beside it; outputs of 16 bits are rounded once", T,
                   __nv_bfloat16, __half) {
  constexpr int64_t kFeatures = 260, kIn = 480, kRows = 200;
  const Product<T> p(kRows, kIn, kFeatures);
  const Weight<T> weight(kFeatures, kIn);
  LinearSparse24 linear(kOptions, nullptr);
  const auto all = p.template run<float>(linear, weight, true, 0, kRows);
  for (const auto& [first, count] :
       {std::pair{0, 1}, {3, 8}, {5, 9}, {17, 17}, {2, 33}, {6, 64}, {3, 65}, {20, 128}, {1, 150}}) {
    const auto some = p.template run<float>(linear, weight, true, first, count);
    CHECK(std::equal(some.begin(), some.end(), all.begin() + first * kFeatures));
  }
  auto expected = all;
  for (float& value : expected) value = to_float(from_float<T>(value));
  CHECK(p.template run<T>(linear, weight, true, 0, kRows) == expected);
}

TEST_CASE("one ring of few stages or many, one block or many: what is summed is the same") {
  using T = __nv_bfloat16;
  for (const int64_t rows : {9, 100}) {
    const Product<T> p(rows, 1024, 200);
    const Weight<T> weight(200, 1024);
    const auto expected = p.run<float>(weight, true, {4, 2});
    CHECK(p.run<float>(weight, true, {4, 2, 1}) == expected);
    CHECK(p.run<float>(weight, true, {8, 1, 200 * 1024}) == expected);
    for (const int32_t num_sms : {1, 5, 100}) check_product(p, weight, p.run<float>(weight, true, {num_sms}), true);
  }
}

TEST_CASE("what is not finite stays in its row or feature, and passes by zeros that are not stored") {
  using T = __nv_bfloat16;
  constexpr int64_t kFeatures = 40, kIn = 96, kRows = 20;
  Blocks<T> blocks(kFeatures, kIn);
  const T infinity = from_float<T>(std::numeric_limits<float>::infinity());
  std::memcpy(blocks.bytes.data() + 2 * kIn / 32 * 36 + 36 + 4 + 6, &infinity, 2);  // of feature 2
  const Weight<T> weight(kFeatures, kIn, blocks);
  Product<T> p(kRows, kIn, kFeatures);
  p.x[3 * kIn + 7] = from_float<T>(std::numeric_limits<float>::quiet_NaN());
  // Numbers that have a place in a block are multiplied, zeros too.
  const auto keeps_7 = [&](int64_t f) { return (blocks.bytes[f * kIn / 32 * 36] >> 7 & 1) != 0; };
  const auto actual = p.run<float>(weight);
  for (int64_t i = 0; i < kRows * kFeatures; ++i) {
    const int64_t row = i / kFeatures, f = i % kFeatures;
    CAPTURE(i);
    if (row == 3 && keeps_7(f)) CHECK(std::isnan(actual[i]));
    else CHECK(std::isfinite(actual[i]) == (f != 2));
  }
}

TEST_CASE("shapes that there are kernels for") {
  CHECK(LinearSparse24::takes(1, 32));
  CHECK(LinearSparse24::takes(2097152, 64));
  CHECK(!LinearSparse24::takes(2097153, 64));
  CHECK(!LinearSparse24::takes(128, 48));
}

}  // namespace
}  // namespace llmb::cuda
