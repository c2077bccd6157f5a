#include "kernels/cuda/activate.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/compare.h"
#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"

namespace llmb::cuda {
namespace {

using test::converted;
using test::DeviceArray;
using test::random_normal;

template <typename F>
F reference(const ActivationSpec& spec, F gate, F up) {
  switch (spec.kind) {
    case Activation::kSilu:
      return gate / (1 + std::exp(-gate)) * up;
    case Activation::kGelu:
      return gate / 2 * (1 + std::erf(gate * static_cast<F>(0.70710678118654752))) * up;
    case Activation::kGeluTanh:
      return gate / 2 *
             (1 +
              std::tanh(static_cast<F>(0.79788456080286536) * (gate + static_cast<F>(0.044715) * gate * gate * gate))) *
             up;
    case Activation::kRelu:
      return (gate > 0 ? gate : 0) * up;
    case Activation::kRelu2:
      return (gate > 0 ? gate * gate : 0) * up;
    case Activation::kTanh:
      return std::tanh(gate) * up;
    case Activation::kClampedSwiglu:
      break;
  }
  const F limit = static_cast<F>(spec.limit), g = std::min(gate, limit), u = std::clamp(up, -limit, limit);
  return (u + 1) * g / (1 + std::exp(-static_cast<F>(spec.alpha) * g));
}

const ActivationSpec kSpecs[] = {
    {Activation::kSilu},        {Activation::kSilu, false},   {Activation::kGelu},
    {Activation::kGelu, false}, {Activation::kGeluTanh},      {Activation::kGeluTanh, false},
    {Activation::kRelu, false}, {Activation::kRelu2, false},  {Activation::kTanh, false},
    {Activation::kClampedSwiglu},
    {Activation::kClampedSwiglu, true, 1.1f, 1.5f}};

}  // namespace

TEST_CASE_TEMPLATE("every activation is as close to fp64 as naive arithmetic, gated and not, for any width", T, float,
                   __nv_bfloat16, __half) {
  for (const ActivationSpec& spec : kSpecs) {
    CAPTURE(static_cast<int>(spec.kind));
    CAPTURE(spec.gated);
    for (const int64_t n : {1, 8, 100, 2047, 2056}) {
      for (const int64_t rows : {0, 1, 3}) {
        const int64_t width = (spec.gated ? 2 : 1) * n;
        const std::vector<T> values = converted<T>(random_normal(rows * width, 1, 4));
        DeviceArray<T> x(values), out(static_cast<size_t>(rows * n));
        activate(spec, x.data(), rows, n, out.data(), nullptr);
        CHECK(out.check_guards());
        CHECK(x.holds(values));
        std::vector<double> expected;
        std::vector<float> naive;
        for (int64_t row = 0; row < rows; ++row)
          for (int64_t i = 0; i < n; ++i) {
            const float gate = to_float(values[row * width + i]);
            const float up = spec.gated ? to_float(values[row * width + n + i]) : 1;
            expected.push_back(reference<double>(spec, gate, up));
            naive.push_back(to_float(from_float<T>(reference<float>(spec, gate, up))));
          }
        CHECK(test::relative_error(out.download_floats(), expected) <=
              2 * test::relative_error(naive, expected) + 2.4e-7);
      }
    }
  }
}

TEST_CASE_TEMPLATE("activate_times multiplies by some columns of wider rows", T, float, __nv_bfloat16, __half) {
  for (const Activation kind : {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kRelu2})
    for (const int64_t width : {1, 8, 100, 2056})
      for (const int64_t y_stride : {width, 3 * width, 3 * width + 1}) {
        CAPTURE(static_cast<int>(kind));
        CAPTURE(width);
        const int64_t rows = 3;
        const std::vector<T> values = converted<T>(random_normal(rows * width, 1, 4));
        const std::vector<float> factors = random_normal(rows * y_stride, 2);
        DeviceArray<T> x(values), out(values.size());
        DeviceArray<float> y(factors);
        activate_times(kind, x.data(), y.data(), y_stride, rows, width, out.data(), nullptr);
        CHECK((out.check_guards() && x.holds(values) && y.holds(factors)));
        std::vector<double> expected;
        std::vector<float> naive;
        for (int64_t i = 0; i < rows * width; ++i) {
          const float gate = to_float(values[i]), up = factors[i / width * y_stride + i % width];
          expected.push_back(reference<double>({kind}, gate, up));
          naive.push_back(to_float(from_float<T>(reference<float>({kind}, gate, up))));
        }
        CHECK(test::relative_error(out.download_floats(), expected) <=
              2 * test::relative_error(naive, expected) + 2.4e-7);
      }
}

TEST_CASE("far inputs: the identity or nothing, and NaN only from NaN") {
  const std::vector<float> values = {100, -100, 1e30f, -1e30f, 0, NAN};
  for (const Activation kind : {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kRelu}) {
    CAPTURE(static_cast<int>(kind));
    DeviceArray<float> x(values), out(values.size());
    activate({kind, false}, x.data(), 1, static_cast<int64_t>(values.size()), out.data(), nullptr);
    const std::vector<float> y = out.download();
    CHECK(y[0] == 100);
    CHECK(std::fabs(y[1]) <= 1e-30f);
    CHECK(y[2] == 1e30f);
    CHECK(y[3] == 0);
    CHECK(y[4] == 0);
    CHECK(std::isnan(y[5]));
  }
}

}  // namespace llmb::cuda
