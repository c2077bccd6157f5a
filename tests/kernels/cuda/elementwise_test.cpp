#include "kernels/cuda/elementwise.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "kernels/cuda/add_embedding.h"
#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"

namespace llmb::cuda {
namespace {

using test::converted;
using test::DeviceArray;
using test::random_normal;
using test::same_bytes;

constexpr int64_t kSizes[] = {0, 1, 7, 8, 2047, 2048, 2049, 5000};

}  // namespace

TEST_CASE_TEMPLATE("add: the residual grows by the product, and out is what it is then, rounded", T, float,
                   __nv_bfloat16, __half) {
  for (const int64_t size : kSizes) {
    for (const int variant : {0, 1, 2, 3}) {
      CAPTURE(size);
      CAPTURE(variant);
      const bool with_delta = variant & 1, with_out = variant & 2;
      const std::vector<float> before = random_normal(size, 1);
      const std::vector<T> delta = converted<T>(random_normal(size, 2));
      DeviceArray<float> residual(before);
      DeviceArray<T> d(delta), out(static_cast<size_t>(size));
      add(residual.data(), with_delta ? d.data() : nullptr, 0.3f, size, with_out ? out.data() : nullptr, nullptr);
      CHECK(residual.check_guards());
      CHECK(out.check_guards());
      const std::vector<float> after = residual.download(), rounded = out.download_floats();
      for (int64_t i = 0; i < size; ++i) {
        CHECK(after[i] == (with_delta ? std::fma(0.3f, to_float(delta[i]), before[i]) : before[i]));
        if (with_out) CHECK(rounded[i] == to_float(from_float<T>(after[i])));
      }
    }
  }
}

TEST_CASE("scale is one product; softcap is close to fp64 and has the right limits") {
  const float inf = std::numeric_limits<float>::infinity();
  for (const int64_t size : kSizes) {
    std::vector<float> values = random_normal(size, 3, 40);
    if (size > 3) values[0] = inf, values[1] = -inf, values[2] = 0;
    DeviceArray<float> scaled(values), capped(values);
    scale(scaled.data(), 0.7f, size, nullptr);
    softcap(capped.data(), 30, size, nullptr);
    CHECK(scaled.check_guards());
    CHECK(capped.check_guards());
    const std::vector<float> s = scaled.download(), c = capped.download();
    for (int64_t i = 0; i < size; ++i) {
      CHECK(s[i] == values[i] * 0.7f);
      CHECK(std::fabs(c[i] - 30 * std::tanh(double{values[i]} / 30)) <= 1e-6 * std::fabs(c[i]));
    }
  }
}

TEST_CASE_TEMPLATE("add_scaled multiplies the sum by a number on the device", T, float, __nv_bfloat16, __half) {
  for (const int64_t size : kSizes) {
    const std::vector<float> before = random_normal(size, 1), factor = {0.37f};
    const std::vector<T> delta = converted<T>(random_normal(size, 2));
    DeviceArray<float> residual(before), f(factor);
    DeviceArray<T> d(delta);
    add_scaled(residual.data(), d.data(), f.data(), size, nullptr);
    CHECK((residual.check_guards() && d.holds(delta) && f.holds(factor)));
    const std::vector<float> after = residual.download();
    for (int64_t i = 0; i < size; ++i) CHECK(after[i] == (before[i] + to_float(delta[i])) * 0.37f);
  }
}

TEST_CASE_TEMPLATE("add_columns adds of each row of y the columns from the first one on", T, float, __nv_bfloat16,
                   __half) {
  constexpr int64_t kRows = 7, kWidth = 300, kStride = 710, kFirst = 310;
  const std::vector<float> before = random_normal(kRows * kWidth, 1);
  const std::vector<T> y = converted<T>(random_normal(kRows * kStride, 2));
  DeviceArray<float> x(before);
  DeviceArray<T> other(y);
  add_columns(x.data(), other.data() + kFirst, kStride, 0.37f, kRows, kWidth, nullptr);
  CHECK((x.check_guards() && other.holds(y)));
  const std::vector<float> after = x.download();
  for (int64_t i = 0; i < kRows * kWidth; ++i)
    CHECK(after[i] == std::fmaf(0.37f, to_float(y[i / kWidth * kStride + kFirst + i % kWidth]), before[i]));
}

TEST_CASE_TEMPLATE("clamp brings into the range what is outside, and nothing else; NaN stays NaN", T, float,
                   __nv_bfloat16, __half) {
  for (const int64_t size : kSizes) {
    std::vector<T> values = converted<T>(random_normal(size, 4, 3));
    if (size > 3) values[3] = from_float<T>(NAN);
    DeviceArray<T> x(values);
    clamp(x.data(), 1.5f, size, nullptr);
    CHECK(x.check_guards());
    const std::vector<float> after = x.download_floats();
    for (int64_t i = 0; i < size; ++i) {
      const float v = to_float(values[i]);
      if (std::isnan(v)) CHECK(std::isnan(after[i]));
      else CHECK(after[i] == std::min(std::max(v, -1.5f), 1.5f));
    }
  }
}

TEST_CASE_TEMPLATE("add_gated adds y times the logistic function of its row's gate; grow_queries grows q alone", T,
                   float, __nv_bfloat16, __half) {
  constexpr int64_t kRows = 5, kWidth = 300, kQSize = 270;
  const std::vector<T> before = converted<T>(random_normal(kRows * kWidth, 1)),
                       y = converted<T>(random_normal(kRows * kWidth, 2));
  const std::vector<float> gate = random_normal(kRows, 3, 3);
  const std::vector<int32_t> positions = {0, 6, 7, 8, 1000000};
  DeviceArray<T> plain(before), gated(before), grown(before), other(y);
  DeviceArray<float> g(gate);
  DeviceArray<int32_t> p(positions);
  add_gated(plain.data(), other.data(), nullptr, kRows, kWidth, nullptr);
  add_gated(gated.data(), other.data(), g.data(), kRows, kWidth, nullptr);
  grow_queries(grown.data(), p.data(), {0.5, 8}, kRows, kQSize, kWidth, nullptr);
  for (const auto* array : {&plain, &gated, &grown}) CHECK(array->check_guards());
  const std::vector<float> sums = plain.download_floats(), parts = gated.download_floats(),
                           queries = grown.download_floats();
  const auto is_near = [](float actual, double expected) {
    const double rounding = std::fabs(to_float(from_float<T>(static_cast<float>(expected))) - expected);
    return std::fabs(actual - expected) <= 2 * rounding + 1e-6 * (1 + std::fabs(expected));
  };
  for (int64_t i = 0; i < kRows * kWidth; ++i) {
    const double x = to_float(before[i]), weight = 1 / (1 + std::exp(-double{gate[i / kWidth]}));
    CHECK(is_near(sums[i], x + to_float(y[i])));
    CHECK(is_near(parts[i], x + weight * to_float(y[i])));
    const double factor = 1 + 0.5 * std::log1p((positions[i / kWidth] + 1) / 8);
    if (i % kWidth < kQSize) CHECK(is_near(queries[i], x * factor));
    else CHECK(queries[i] == to_float(before[i]));
  }
}

TEST_CASE_TEMPLATE("multiply_by_gate multiplies by the function of each gate", T, float, __nv_bfloat16, __half) {
  for (const int64_t size : {1, 8, 300, 4096}) {
    const std::vector<T> before = converted<T>(random_normal(size, 1)), gate = converted<T>(random_normal(size, 2, 4));
    for (const GateKind kind : {GateKind::kIdentity, GateKind::kLogistic, GateKind::kSilu}) {
      DeviceArray<T> x(before);
      const DeviceArray<T> g(gate);
      multiply_by_gate(kind, x.data(), g.data(), size, nullptr);
      CHECK(x.check_guards());
      const std::vector<float> actual = x.download_floats();
      for (int64_t i = 0; i < size; ++i) {
        const double y = to_float(gate[i]), logistic = 1 / (1 + std::exp(-y));
        const double factor = kind == GateKind::kIdentity ? y : kind == GateKind::kLogistic ? logistic : y * logistic;
        const double expected = to_float(before[i]) * factor;
        const double rounding = std::fabs(to_float(from_float<T>(static_cast<float>(expected))) - expected);
        CHECK(std::fabs(actual[i] - expected) <= 2 * rounding + 1e-6 * (1e-3 + std::fabs(expected)));
      }
    }
  }
}

TEST_CASE_TEMPLATE("add_embedding adds the rows that are named", T, float, __nv_bfloat16, __half) {
  for (const int64_t hidden : {1, 8, 100, 1024, 1032}) {
    CAPTURE(hidden);
    const std::vector<int32_t> rows = {4, 0, 4, 2};
    const std::vector<T> table = converted<T>(random_normal(5 * hidden, 5));
    const std::vector<float> before = random_normal(4 * hidden, 6);
    DeviceArray<T> t(table);
    DeviceArray<int32_t> r(rows);
    DeviceArray<float> residual(before);
    add_embedding(t.data(), r.data(), 4, hidden, residual.data(), nullptr);
    add_embedding(t.data(), r.data(), 0, hidden, residual.data(), nullptr);
    CHECK(residual.check_guards());
    CHECK(t.holds(table));
    const std::vector<float> after = residual.download();
    for (int64_t i = 0; i < 4 * hidden; ++i)
      CHECK(after[i] == before[i] + to_float(table[rows[i / hidden] * hidden + i % hidden]));
  }
}

}  // namespace llmb::cuda
