// Random weights in units, a product of them and its comparison with fp64, for the tests of linear_int4's kernels.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "core/block_format.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/int4_pack.h"
#include "kernels/cuda/linear_int4.h"
#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"

namespace llmb::cuda::test_int4 {

using int4::Meaning;
using test::DeviceArray;
using test::random_normal;

// A device of few multiprocessors, so that sums over k are cut in several ways.
constexpr LinearInt4Options kOptions{3};

template <class T>
std::vector<T> rounded(const std::vector<float>& values) {
  std::vector<T> out;
  for (const float x : values) out.push_back(from_float<T>(x));
  return out;
}

// Weights [features, k] that were quantised on the device.
template <class T>
struct Weight {
  Weight(const std::vector<float>& values, int64_t out_features, int64_t in_features)
      : features(out_features),
        k(in_features),
        units(static_cast<size_t>(int4::bytes(features, k, Meaning::kFromEight))) {
    clear();
    const DeviceArray<float> from(values);
    const int64_t half = features / 2;  // as parts that are stacked
    quantize_int4<T>(from.data(), half, k, 0, units.data(), nullptr);
    quantize_int4<T>(from.data() + half * k, features - half, k, half, units.data(), nullptr);
    CHECK(units.check_guards());
  }
  // Random codes, scales and zeros in blocks; of MXFP4 scales from `first` on, as they are stored.
  Weight(int64_t out_features, int64_t in_features, Meaning code_meaning, std::vector<float>* numbers, int first = 120)
      : features(out_features),
        k(in_features),
        meaning(code_meaning),
        units(static_cast<size_t>(int4::bytes(features, k, meaning))) {
    clear();
    const bool is_mxfp4 = meaning == Meaning::kE2m1;
    constexpr bool kIsHalf = std::is_same_v<T, __half>;
    const BlockFormat bytes_format = kIsHalf ? BlockFormat::kInt8F16 : BlockFormat::kInt8BF16;
    const BlockFormat four_bits = kIsHalf ? BlockFormat::kInt4F16 : BlockFormat::kInt4BF16;
    const BlockFormat integers = int4::has_bytes(meaning) ? bytes_format : four_bits;
    const BlockFormat format = is_mxfp4 ? BlockFormat::kMXFP4 : integers;
    const int64_t num_blocks = features * k / 32, bytes = block_size(format).bytes;
    std::vector<uint8_t> blocks(static_cast<size_t>(num_blocks * bytes));
    numbers->resize(static_cast<size_t>(features * k));
    std::mt19937 rng(5);
    for (int64_t b = 0; b < num_blocks; ++b) {
      uint8_t* const block = blocks.data() + b * bytes;
      for (int64_t i = 0; i < bytes; ++i) block[i] = static_cast<uint8_t>(rng());
      const T scale = from_float<T>(0.01f + 0.0001f * static_cast<float>(rng() % 1000));
      if (is_mxfp4) {
        block[0] = static_cast<uint8_t>(first + b % 9);
      } else {
        std::memcpy(block, &scale, 2);
        block[2] = int4::has_bytes(meaning) ? uint8_t{128} : uint8_t{8};
        if (int4::has_zeros(meaning)) block[2] = static_cast<uint8_t>(rng() % (int4::has_bytes(meaning) ? 256 : 17));
      }
      decode_block(format, block, numbers->data() + b * 32);
    }
    for (float& number : *numbers) number = to_float(from_float<T>(number));
    const DeviceArray<uint8_t> from(blocks);
    pack_int4_blocks<T>(from.data(), features, k, 0, meaning, units.data(), nullptr);
    CHECK(units.check_guards());
  }
  Int4View view(const T* bias = nullptr) const { return {units.data(), bias, features, k, meaning}; }
  void clear() { check(cudaMemset(units.data(), 0, units.size()), "cudaMemset"); }

  // As dequantize_int4() writes them.
  std::vector<float> numbers() const {
    DeviceArray<T> out(static_cast<size_t>(features * k));
    dequantize_int4(view(), out.data(), nullptr);
    const auto result = out.download_floats();
    CHECK(out.check_guards());
    return result;
  }

  int64_t features, k;
  Meaning meaning = Meaning::kFromEight;
  DeviceArray<uint8_t> units;
};

template <class T>
struct Product {
  Product(int64_t num_rows, int64_t k, int64_t features)
      : rows(num_rows), x(rounded<T>(random_normal(rows * k, 1))), bias(rounded<T>(random_normal(features, 3))) {}

  template <class Out>
  std::vector<float> run(const Weight<T>& weight, bool with_bias = true, int64_t first = 0, int64_t count = -1) const {
    LinearInt4 linear(kOptions, nullptr);
    return run<Out>(linear, weight, with_bias, first, count < 0 ? rows : count);
  }
  template <class Out>
  std::vector<float> run(LinearInt4& linear, const Weight<T>& weight, bool with_bias, int64_t first,
                         int64_t count) const {
    const auto begin = x.begin() + first * weight.k;
    const DeviceArray<T> some(std::vector<T>(begin, begin + count * weight.k)), on_device(bias);
    DeviceArray<Out> out(static_cast<size_t>(count * weight.features));
    linear.run(weight.view(with_bias ? on_device.data() : nullptr), some.data(), count, out.data(), nullptr);
    const auto result = out.download_floats();
    CHECK(out.check_guards());
    return result;
  }

  int64_t rows;
  std::vector<T> x, bias;
};

// At most twice the error of a plain sum in fp32, over all elements.
template <class T>
void check_product(const Product<T>& p, const Weight<T>& weight, const std::vector<float>& numbers,
                   const std::vector<float>& actual, bool with_bias) {
  double worst = 0, allowed = 0, largest = 0;
  for (int64_t row = 0; row < p.rows; ++row)
    for (int64_t f = 0; f < weight.features; ++f) {
      double exact = with_bias ? static_cast<double>(to_float(p.bias[f])) : 0;
      float naive = static_cast<float>(exact);
      for (int64_t k = 0; k < weight.k; ++k) {
        const float a = to_float(p.x[row * weight.k + k]), b = numbers[f * weight.k + k];
        exact += static_cast<double>(a) * static_cast<double>(b);
        naive += a * b;
      }
      const double error = std::fabs(static_cast<double>(actual[row * weight.features + f]) - exact);
      if (!std::isnan(worst) && !(error <= worst)) worst = error;  // NaN stays
      allowed = std::max(allowed, std::fabs(static_cast<double>(naive) - exact));
      largest = std::max(largest, std::fabs(exact));
    }
  CAPTURE(worst);
  CHECK(worst <= 2 * allowed + 1e-6 * largest);
}

}  // namespace llmb::cuda::test_int4
