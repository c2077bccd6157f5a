#include "kernels/cuda/activation.h"

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

template <class T>
std::vector<float> run(std::span<const T> gate_up, int64_t rows, int64_t intermediate) {
  DeviceArray<T> x(gate_up), out(static_cast<size_t>(rows * intermediate));
  silu_mul(x.data(), rows, intermediate, out.data(), nullptr);
  CHECK(out.check_guards());
  CHECK(x.holds(gate_up));
  return out.download_floats();
}

}  // namespace

TEST_CASE_TEMPLATE("silu_mul is as close to fp64 as naive arithmetic, for any width", T, float, __nv_bfloat16, __half) {
  for (const int64_t intermediate : {1, 7, 8, 100, 2047, 2048, 2056, 4864}) {
    for (const int64_t rows : {0, 1, 3}) {
      CAPTURE(intermediate);
      CAPTURE(rows);
      const std::vector<T> x = converted<T>(random_normal(rows * 2 * intermediate, 1, 4));
      const std::vector<float> actual = run<T>(x, rows, intermediate);
      std::vector<double> expected;
      std::vector<float> naive;
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t i = 0; i < intermediate; ++i) {
          const T* gate_up = x.data() + row * 2 * intermediate;
          const float gate = to_float(gate_up[i]), up = to_float(gate_up[intermediate + i]);
          expected.push_back(gate / (1 + std::exp(-double{gate})) * up);
          naive.push_back(to_float(from_float<T>(gate / (1 + std::exp(-gate)) * up)));
        }
      }
      CHECK(test::relative_error(actual, expected) <= 2 * test::relative_error(naive, expected) + 1.2e-7);
    }
  }
}

TEST_CASE("far gates: the identity, zero, and NaN only from NaN") {
  const std::vector<float> x = {100, -100, 1e30f, -1e30f, 0, NAN, 2, 2, 2, 2, 2, 2};
  const std::vector<float> out = run<float>(x, 1, 6);
  CHECK(out[0] == 200);
  CHECK(std::fabs(out[1]) <= 1e-30f);
  CHECK(out[2] == 2e30f);
  CHECK(out[3] == 0);
  CHECK(out[4] == 0);
  CHECK(std::isnan(out[5]));
}

}  // namespace llmb::cuda
