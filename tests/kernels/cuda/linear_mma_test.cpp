#include "kernels/cuda/linear_mma.h"

#include <doctest/doctest.h>

#include <cmath>
#include <type_traits>

#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"

namespace llmb::cuda {
namespace {

using test::converted;
using test::DeviceArray;
using test::random_normal;

struct Size {
  int64_t rows, out_features, in_features;
};

template <class T>
struct Problem {
  Problem(const Size& s, bool with_bias)
      : size(s),
        x(converted<T>(random_normal(s.rows * s.in_features, 1))),
        weight(converted<T>(random_normal(s.out_features * s.in_features, 2))),
        bias(converted<T>(with_bias ? random_normal(s.out_features, 3) : std::vector<float>())) {}
  Size size;
  std::vector<T> x, weight, bias;
};

template <class T, class Out>
std::vector<float> run(const Problem<T>& p, int64_t first_row, int64_t rows) {
  const DeviceArray<T> weight(p.weight), bias(p.bias);
  const auto x_begin = p.x.begin() + first_row * p.size.in_features;
  const std::vector<T> x_rows(x_begin, x_begin + rows * p.size.in_features);
  const DeviceArray<T> x(x_rows);
  DeviceArray<Out> out(static_cast<size_t>(rows * p.size.out_features));
  const LinearView view{weight.data(), p.bias.empty() ? nullptr : bias.data(), p.size.out_features, p.size.in_features};
  linear_mma(view, x.data(), rows, out.data(), nullptr);
  const auto result = out.download_floats();
  CHECK(out.check_guards());
  CHECK(weight.holds(p.weight));
  CHECK(x.holds(x_rows));
  return result;
}

// Within twice the error of a plain fp32 chain that is rounded to Out at the end.
template <class T, class Out>
void check_against_fp64(const Size& s, bool with_bias) {
  CAPTURE(s.rows);
  CAPTURE(s.out_features);
  CAPTURE(s.in_features);
  const Problem<T> p(s, with_bias);
  const std::vector<float> actual = run<T, Out>(p, 0, s.rows);
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

TEST_CASE_TEMPLATE("equals fp64 at every tile border", T, float, __nv_bfloat16, __half) {
  for (const int64_t rows : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129})
    check_against_fp64<T, T>({rows, 40, 72}, rows % 2 == 0);
  for (const int64_t out_features : {1, 7, 31, 32, 33, 64, 129})
    for (const int64_t rows : {3, 20, 70}) check_against_fp64<T, float>({rows, out_features, 64}, rows == 20);
  for (const int64_t in_features : {1, 5, 8, 16, 56, 63, 64, 65, 72, 128, 136, 520, 1032})
    for (const int64_t rows : {2, 18, 66}) check_against_fp64<T, T>({rows, 33, in_features}, rows == 2);
}

TEST_CASE("no rows, no features: nothing is written") {
  const Problem<__nv_bfloat16> p({0, 8, 8}, false);
  CHECK(run<__nv_bfloat16, float>(p, 0, 0).empty());
}

TEST_CASE_TEMPLATE("a row's bits are the same alone and in a batch of any size", T, float, __nv_bfloat16, __half) {
  const Size size{150, 70, 200};
  const Problem<T> p(size, true);
  const std::vector<float> whole = run<T, float>(p, 0, size.rows);
  for (const auto& [first, rows] :
       {std::pair<int64_t, int64_t>{0, 1}, {149, 1}, {3, 16}, {10, 17}, {50, 64}, {60, 65}}) {
    const std::vector<float> part = run<T, float>(p, first, rows);
    const bool same = std::equal(part.begin(), part.end(), whole.begin() + first * size.out_features);
    CHECK(same);
  }
}

TEST_CASE("any order of threads and blocks gives the same") {
  const Problem<__nv_bfloat16> p({20, 50, 136}, true);
  const auto expected = run<__nv_bfloat16, float>(p, 0, 20);
  test::for_each_order(5, [&](uint64_t) { CHECK(run<__nv_bfloat16, float>(p, 0, 20) == expected); });
}

}  // namespace
}  // namespace llmb::cuda
