#include "kernels/cuda/norm.h"

#include <doctest/doctest.h>

#include <cmath>

#include "tests/support/compare.h"
#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"

namespace llmb::cuda {
namespace {

using test::converted;
using test::DeviceArray;
using test::random_normal;
using test::same_bytes;

struct Output {
  std::vector<float> residual, out;
};

template <class T>
Output run(std::span<const float> residual, std::span<const T> delta, const std::vector<float>& weight, int64_t rows) {
  const int64_t hidden = static_cast<int64_t>(weight.size());
  DeviceArray<float> r(residual), w(weight);
  DeviceArray<T> d(delta), out(static_cast<size_t>(rows * hidden));
  add_rms_norm(r.data(), delta.empty() ? nullptr : d.data(), w.data(), 1e-5f, rows, hidden, out.data(), nullptr);
  CHECK(r.check_guards());
  CHECK(out.check_guards());
  CHECK(d.check_guards());
  CHECK(d.holds(delta));
  CHECK(w.holds(weight));
  return {r.download(), out.download_floats()};
}

template <class T>
std::vector<float> rounded(std::span<const float> values) {
  std::vector<float> result;
  for (const float x : values) result.push_back(to_float(from_float<T>(x)));
  return result;
}

template <class T>
void check_against_fp64(int64_t rows, int64_t hidden, bool with_delta) {
  CAPTURE(rows);
  CAPTURE(hidden);
  CAPTURE(with_delta);
  const std::vector<float> residual = random_normal(rows * hidden, 1, 3), weight = random_normal(hidden, 3);
  const std::vector<T> delta = with_delta ? converted<T>(random_normal(rows * hidden, 2)) : std::vector<T>();
  const Output actual = run<T>(residual, delta, weight, rows);
  std::vector<float> sum = residual, naive(sum.size());
  std::vector<double> expected(sum.size());
  for (int64_t r = 0; r < rows; ++r) {
    double exact = 0;
    float single = 0;
    for (int64_t i = r * hidden; i < (r + 1) * hidden; ++i) {
      if (with_delta) sum[i] += to_float(delta[i]);
      exact += double{sum[i]} * sum[i];
      single += sum[i] * sum[i];
    }
    const double scale = 1 / std::sqrt(exact / static_cast<double>(hidden) + double{1e-5f});
    const float naive_scale = 1 / std::sqrt(single / static_cast<float>(hidden) + 1e-5f);
    for (int64_t i = 0; i < hidden; ++i) {
      expected[r * hidden + i] = sum[r * hidden + i] * scale * weight[i];
      naive[r * hidden + i] = sum[r * hidden + i] * naive_scale * weight[i];
    }
  }
  CHECK(same_bytes(actual.residual, sum));  // one rounding: exact
  CHECK(test::relative_error(actual.out, expected) <= 2 * test::relative_error(rounded<T>(naive), expected) + 1.2e-7);
}

}  // namespace

TEST_CASE_TEMPLATE("add_rms_norm is as close to fp64 as naive arithmetic, for any width, with and without delta", T,
                   float, __nv_bfloat16, __half) {
  // Around a warp of single values and of packs, the longest rows that registers hold, and one more.
  for (const int64_t hidden :
       {1, 2, 8, 31, 32, 33, 64, 127, 128, 129, 256, 512, 576, 1000, 1024, 1032, 2047, 2049, 4096})
    for (const int64_t rows : {0, 1, 3, 4, 5}) check_against_fp64<T>(rows, hidden, (hidden + rows) % 2 == 0);
  for (const int64_t hidden : {4097, 8192, 16384, 16392, 32768, 32776})
    for (const bool with_delta : {false, true}) check_against_fp64<T>(2, hidden, with_delta);
}

TEST_CASE_TEMPLATE("a row's norm is bit-identical alone and in a batch, whatever the order of threads", T, float,
                   __nv_bfloat16, __half) {
  for (const int64_t hidden : {613, 896, 4096}) {
    constexpr int64_t kRows = 7;
    const std::vector<float> residual = random_normal(kRows * hidden, 4), weight = random_normal(hidden, 6);
    const std::vector<T> delta = converted<T>(random_normal(kRows * hidden, 5));
    const Output whole = run<T>(residual, delta, weight, kRows);
    test::for_each_order(3, [&](uint64_t) {
      CHECK(same_bytes(whole.out, run<T>(residual, delta, weight, kRows).out));
      for (int64_t r = 0; r < kRows; ++r) {
        const auto begin = static_cast<size_t>(r * hidden), size = static_cast<size_t>(hidden);
        const Output alone =
            run<T>(std::span(residual).subspan(begin, size), std::span(delta).subspan(begin, size), weight, 1);
        CHECK(same_bytes(alone.out, std::span(whole.out).subspan(begin, size)));
      }
    });
  }
}

TEST_CASE("zeros give zeros, and a NaN stays in its row") {
  for (const int64_t hidden : {50, 64, 2048}) {
    const auto size = static_cast<size_t>(hidden);
    std::vector<float> residual(3 * size, 0.0f);
    const std::vector<float> weight(size, 2.0f);
    residual[2 * size - 1] = std::nanf("");
    const Output out = run<__nv_bfloat16>(residual, {}, weight, 3);
    for (size_t i = 0; i < 3 * size; ++i) {
      if (i / size == 1) CHECK(std::isnan(out.out[i]));
      else CHECK(out.out[i] == 0);
    }
  }
}

}  // namespace llmb::cuda
