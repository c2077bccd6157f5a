// Shared by tests of products of int8 and e4m3: rows that quantize_rows() made on the device, and problems of two such
// matrices (W8A8).
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "base/float_formats.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/quantize_rows.h"
#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"

namespace llmb::cuda::test_bytes {

// Code: int8_t or E4m3.
template <class Code>
int64_t row_bytes(int64_t width) {
  return std::is_same_v<Code, int8_t> ? int8_row_bytes(width) : fp8::row_bytes(width);
}

template <class Code>
struct ByteRows {
  template <class T>
  ByteRows(const std::vector<T>& x, int64_t num_rows, int64_t num_columns)
      : rows(num_rows),
        width(num_columns),
        codes(static_cast<size_t>(rows * row_bytes<Code>(width))),
        scales(static_cast<size_t>(rows)) {
    const test::DeviceArray<T> from(x);
    quantize_rows(from.data(), rows, width, codes.data(), scales.data(), nullptr);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    CHECK((codes.check_guards() && scales.check_guards()));
  }
  ByteRows(int64_t num_rows, int64_t num_columns, uint32_t seed)
      : ByteRows(test::random_normal(num_rows * num_columns, seed), num_rows, num_columns) {}

  // The numbers that the codes mean without scales, in the order of the codes. [rows, row_bytes]
  std::vector<float> numbers() const {
    std::vector<float> values;
    for (const Code code : codes.download()) {
      if constexpr (std::is_same_v<Code, int8_t>) values.push_back(code);
      else values.push_back(fp8_e4m3_to_f32(code.bits));
    }
    return values;
  }

  int64_t rows, width;
  test::DeviceArray<Code> codes;
  test::DeviceArray<float> scales;
};

// Rows of x times a weight. View and Rows: Int8View and Int8Rows, or Fp8View and Fp8Rows. Bias: float or a type of 16
// bits.
template <class Code, class View, class Rows, class Bias>
struct Problem {
  Problem(int64_t num_rows, int64_t out, int64_t in, bool with_bias)
      : rows(num_rows),
        w(out, in, 1),
        x(num_rows, in, 2),
        bias(test::converted<Bias>(test::random_normal(out, 3))),
        weight{w.codes.data(), w.scales.data(), with_bias ? bias.data() : nullptr, out, in},
        rounded{x.codes.data(), x.scales.data()} {}

  int64_t rows;
  ByteRows<Code> w, x;
  test::DeviceArray<Bias> bias;
  View weight;
  Rows rounded;
};

// An exact output, and the same of all magnitudes.
struct ExactOutput {
  double value, magnitude;
};

template <class P>
std::vector<ExactOutput> exact_outputs(const P& p) {
  const std::vector<float> w = p.w.numbers(), x = p.x.numbers(), w_scales = p.w.scales.download(),
                           x_scales = p.x.scales.download(), bias = p.bias.download_floats();
  const int64_t size = p.weight.row_bytes(), features = p.weight.out_features;
  std::vector<ExactOutput> out;
  for (int64_t row = 0; row < p.rows; ++row)
    for (int64_t f = 0; f < features; ++f) {
      double sum = 0, magnitudes = 0;
      for (int64_t k = 0; k < size; ++k) {
        const double product = double{w[f * size + k]} * x[row * size + k];
        sum += product, magnitudes += std::fabs(product);
      }
      const double scale = double{w_scales[f]} * x_scales[row], b = p.weight.bias == nullptr ? 0.0 : bias[f];
      out.push_back({sum * scale + b, magnitudes * scale + std::fabs(b)});
    }
  return out;
}

// Roundings to Out beside those of fp32 sums.
template <class Out>
double rounding_of() {
  return std::is_same_v<Out, float> ? 0x1p-24 : std::is_same_v<Out, __half> ? 0x1p-11 : 0x1p-8;
}

// Every output within one rounding to Out and `sum_error` of all its magnitudes.
template <class Out>
void check_outputs(const std::vector<float>& actual, const std::vector<ExactOutput>& exact, double sum_error) {
  REQUIRE(actual.size() == exact.size());
  for (size_t i = 0; i < exact.size(); ++i) {
    CAPTURE(i);
    const double error = std::fabs(double{actual[i]} - exact[i].value), sums = sum_error * exact[i].magnitude;
    REQUIRE(error <= sums + rounding_of<Out>() * (std::fabs(exact[i].value) + sums));
  }
}

}  // namespace llmb::cuda::test_bytes
