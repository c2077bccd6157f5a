// A matrix product on random numbers and its comparison with fp64, for the tests of linear's kernels.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/linear_view.h"
#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"

namespace llmb::cuda::test_linear {

struct Size {
  int64_t rows, out_features, in_features;
};

template <class T>
struct Problem {
  Problem(const Size& s, bool with_bias)
      : size(s),
        x(test::converted<T>(test::random_normal(s.rows * s.in_features, 1))),
        weight(test::converted<T>(test::random_normal(s.out_features * s.in_features, 2))),
        bias(test::converted<T>(with_bias ? test::random_normal(s.out_features, 3) : std::vector<float>())) {}
  Size size;
  std::vector<T> x, weight, bias;
};

// Some rows of the product by linear(view, x, rows, out); that nothing else is written.
template <class T, class Out, class Linear>
std::vector<float> run(const Linear& linear, const Problem<T>& p, int64_t first_row, int64_t rows) {
  const test::DeviceArray<T> weight(p.weight), bias(p.bias);
  const auto x_begin = p.x.begin() + first_row * p.size.in_features;
  const std::vector<T> x_rows(x_begin, x_begin + rows * p.size.in_features);
  const test::DeviceArray<T> x(x_rows);
  test::DeviceArray<Out> out(static_cast<size_t>(rows * p.size.out_features));
  const LinearView view{weight.data(), p.bias.empty() ? nullptr : bias.data(), p.size.out_features, p.size.in_features};
  linear(view, x.data(), rows, out.data());
  const auto result = out.download_floats();
  CHECK(out.check_guards());
  CHECK(weight.holds(p.weight));
  CHECK(x.holds(x_rows));
  return result;
}

// Within twice the error of a plain fp32 chain that is rounded to Out at the end.
template <class T, class Out, class Linear>
void check_against_fp64(const Linear& linear, const Size& s, bool with_bias) {
  CAPTURE(s.rows);
  CAPTURE(s.out_features);
  CAPTURE(s.in_features);
  const Problem<T> p(s, with_bias);
  const std::vector<float> actual = run<T, Out>(linear, p, 0, s.rows);
  double worst_naive = 0, worst = 0;
  for (int64_t r = 0; r < s.rows; ++r)
    for (int64_t c = 0; c < s.out_features; ++c) {
      double exact = with_bias ? to_float(p.bias[c]) : 0.0;
      float naive = 0;
      for (int64_t k = 0; k < s.in_features; ++k) {
        const float a = to_float(p.x[r * s.in_features + k]), b = to_float(p.weight[c * s.in_features + k]);
        exact += double{a} * b;
        naive += a * b;
      }
      if (with_bias) naive += to_float(p.bias[c]);
      const double naive_error = std::fabs(double{to_float(from_float<Out>(naive))} - exact);
      const double error = std::fabs(double{actual[r * s.out_features + c]} - exact);
      REQUIRE(std::isfinite(error));
      worst_naive = std::max(worst_naive, naive_error);
      worst = std::max(worst, error);
    }
  const double smallest = 1e-6 * std::sqrt(static_cast<double>(s.in_features));
  CHECK(worst <= 2 * worst_naive + smallest);
}

// Part of the rows has the same bits as all of them.
template <class T, class Linear>
void check_batch_invariance(const Linear& linear, const Size& size,
                            const std::vector<std::pair<int64_t, int64_t>>& parts) {
  const Problem<T> p(size, true);
  const std::vector<float> whole = run<T, float>(linear, p, 0, size.rows);
  for (const auto& [first, rows] : parts) {
    CAPTURE(first);
    CAPTURE(rows);
    const std::vector<float> part = run<T, float>(linear, p, first, rows);
    const bool same = std::equal(part.begin(), part.end(), whole.begin() + first * size.out_features);
    CHECK(same);
  }
}

}  // namespace llmb::cuda::test_linear
