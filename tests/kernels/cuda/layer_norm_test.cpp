#include "kernels/cuda/layer_norm.h"

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

constexpr float kEps = 1e-5f;

struct Case {
  int64_t rows, hidden;
  bool with_delta, with_bias;
};

// Returns out; checks that the residual is the exact sum.
template <class T, class Out>
std::vector<float> run(const Case& c, const std::vector<float>& residual, const std::vector<T>& delta,
                       const std::vector<float>& weight, const std::vector<float>& bias, bool in_place) {
  DeviceArray<float> r(residual), w(weight), b(bias);
  DeviceArray<T> d(delta);
  DeviceArray<Out> out(residual.size());
  const auto norm = [&](auto* to) {
    add_layer_norm(r.data(), c.with_delta ? d.data() : nullptr, w.data(), c.with_bias ? b.data() : nullptr, kEps,
                   c.rows, c.hidden, to, nullptr);
  };
  if (in_place) norm(r.data());
  else norm(out.data());
  CHECK(r.check_guards());
  CHECK(out.check_guards());
  if (in_place) return r.download();
  std::vector<float> sum = residual;
  for (size_t i = 0; c.with_delta && i < sum.size(); ++i) sum[i] += to_float(delta[i]);
  CHECK(same_bytes(r.download(), sum));
  return out.download_floats();
}

template <class T>
void check_against_fp64(const Case& c) {
  CAPTURE(c.rows);
  CAPTURE(c.hidden);
  const int64_t size = c.rows * c.hidden;
  std::vector<float> residual = random_normal(size, 1, 3);
  for (float& x : residual) x += 2;  // a mean that is not small beside the deviation
  const std::vector<float> weight = random_normal(c.hidden, 3), bias = random_normal(c.hidden, 4);
  const std::vector<T> delta = converted<T>(random_normal(size, 2));
  std::vector<double> expected;
  std::vector<float> naive;
  for (int64_t row = 0; row < c.rows; ++row) {
    std::vector<float> x;
    double mean = 0, variance = 0;
    float mean1 = 0, variance1 = 0;
    for (int64_t i = row * c.hidden; i < (row + 1) * c.hidden; ++i) {
      x.push_back(residual[i] + (c.with_delta ? to_float(delta[i]) : 0));
      mean += x.back() / static_cast<double>(c.hidden);
      mean1 += x.back();
    }
    mean1 /= static_cast<float>(c.hidden);
    for (const float v : x) {
      variance += (v - mean) * (v - mean) / static_cast<double>(c.hidden);
      variance1 += (v - mean1) * (v - mean1) / static_cast<float>(c.hidden);
    }
    for (int64_t i = 0; i < c.hidden; ++i) {
      const float b = c.with_bias ? bias[i] : 0;
      expected.push_back((x[i] - mean) / std::sqrt(variance + double{kEps}) * weight[i] + b);
      naive.push_back(to_float(from_float<T>((x[i] - mean1) / std::sqrt(variance1 + kEps) * weight[i] + b)));
    }
  }
  const double limit = 2 * test::relative_error(naive, expected) + 2.4e-7;
  CHECK(test::relative_error(run<T, T>(c, residual, delta, weight, bias, false), expected) <= limit);
  const std::vector<float> wide = run<T, float>(c, residual, delta, weight, bias, false);
  CHECK(test::relative_error(wide, expected) <= limit);
  CHECK(same_bytes(wide, run<T, float>(c, residual, delta, weight, bias, true)));
}

}  // namespace

TEST_CASE_TEMPLATE("add_layer_norm is as close to fp64 as naive arithmetic: widths, delta, bias, in place", T, float,
                   __nv_bfloat16, __half) {
  for (const int64_t hidden : {2, 8, 33, 255, 256, 257, 1000, 2048, 2056, 4104})
    for (const int64_t rows : {0, 1, 3}) check_against_fp64<T>({rows, hidden, hidden % 3 != 0, rows != 1});
}

TEST_CASE_TEMPLATE("rms_norm_groups is as close to fp64 as naive arithmetic, and leaves the other columns alone", T,
                   float, __nv_bfloat16, __half) {
  for (const int64_t width : {2, 8, 64, 100, 128, 512, 513, 520, 2048}) {
    for (const int64_t num_groups : {1, 5}) {
      CAPTURE(width);
      CAPTURE(num_groups);
      constexpr int64_t kRows = 3, kBefore = 8, kAfter = 8;
      const int64_t stride = kBefore + num_groups * width + kAfter;
      const std::vector<T> before = converted<T>(random_normal(kRows * stride, 8, 2));
      const std::vector<float> weight = random_normal(width, 9);
      DeviceArray<T> x(before);
      DeviceArray<float> w(weight);
      rms_norm_groups(x.data() + kBefore, stride, num_groups, w.data(), width, kEps, kRows, nullptr);
      CHECK(x.check_guards());
      const std::vector<float> after = x.download_floats();
      std::vector<double> expected;
      std::vector<float> naive, actual;
      for (int64_t row = 0; row < kRows; ++row)
        for (int64_t c = 0; c < stride; ++c) {
          const int64_t at = row * stride + c, group = (c - kBefore) / width;
          if (c < kBefore || group >= num_groups) {
            CHECK(after[at] == to_float(before[at]));
            continue;
          }
          double squares = 0;
          float single = 0;
          for (int64_t i = 0; i < width; ++i) {
            const float v = to_float(before[row * stride + kBefore + group * width + i]);
            squares += double{v} * v / static_cast<double>(width);
            single += v * v;
          }
          const float v = to_float(before[at]), g = weight[(c - kBefore) % width];
          expected.push_back(v / std::sqrt(squares + double{kEps}) * g);
          naive.push_back(to_float(from_float<T>(v / std::sqrt(single / static_cast<float>(width) + kEps) * g)));
          actual.push_back(after[at]);
        }
      CHECK(test::relative_error(actual, expected) <= 2 * test::relative_error(naive, expected) + 1.2e-7);
    }
  }
}

TEST_CASE_TEMPLATE("layer_norm_groups norms each group by its own weight, and leaves the other columns alone", T, float,
                   __nv_bfloat16, __half) {
  constexpr int64_t kRows = 3, kBefore = 8, kAfter = 8, kGroups = 5;
  for (const int64_t width : {2, 8, 33, 128}) {
    CAPTURE(width);
    const int64_t stride = kBefore + kGroups * width + kAfter, all = kGroups * width;
    const std::vector<T> before = converted<T>(random_normal(kRows * stride, 8, 2));
    const std::vector<float> weight = random_normal(all, 9), bias = random_normal(all, 10);
    DeviceArray<T> x(before);
    DeviceArray<float> w(weight), b(bias);
    layer_norm_groups(x.data() + kBefore, stride, kGroups, w.data(), b.data(), width, kEps, kRows, nullptr);
    CHECK(x.check_guards());
    const std::vector<float> after = x.download_floats();
    std::vector<double> expected;
    std::vector<float> rounded, actual;
    for (int64_t at = 0; at < kRows * stride; ++at) {
      const int64_t c = at % stride - kBefore, begin = at - c % width;
      if (c < 0 || c >= all) {
        CHECK(after[at] == to_float(before[at]));
        continue;
      }
      double mean = 0, variance = 0;
      for (int64_t i = begin; i < begin + width; ++i) mean += to_float(before[i]) / static_cast<double>(width);
      for (int64_t i = begin; i < begin + width; ++i) {
        const double d = to_float(before[i]) - mean;
        variance += d * d / static_cast<double>(width);
      }
      expected.push_back((to_float(before[at]) - mean) / std::sqrt(variance + double{kEps}) * weight[c] + bias[c]);
      rounded.push_back(to_float(from_float<T>(static_cast<float>(expected.back()))));
      actual.push_back(after[at]);
    }
    CHECK(test::relative_error(actual, expected) <= 2 * test::relative_error(rounded, expected) + 2.4e-7);
  }
}

TEST_CASE("a row's norm is bit-identical alone and in a batch, whatever the order of threads") {
  constexpr int64_t kRows = 5, kHidden = 1000;
  const std::vector<float> residual = random_normal(kRows * kHidden, 4), weight = random_normal(kHidden, 6);
  const auto norm = [&](std::span<const float> from, int64_t rows) {
    DeviceArray<float> r(from), w(weight);
    DeviceArray<__nv_bfloat16> out(from.size());
    add_layer_norm(r.data(), static_cast<const __nv_bfloat16*>(nullptr), w.data(), nullptr, kEps, rows, kHidden,
                   out.data(), nullptr);
    return out.download_floats();
  };
  const std::vector<float> whole = norm(residual, kRows);
  test::for_each_order(3, [&](uint64_t) {
    CHECK(same_bytes(whole, norm(residual, kRows)));
    for (int64_t r = 0; r < kRows; ++r)
      CHECK(same_bytes(norm(std::span(residual).subspan(r * kHidden, kHidden), 1),
                       std::span(whole).subspan(r * kHidden, kHidden)));
  });
}

}  // namespace llmb::cuda
