#include "kernels/cpu/activation.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "tests/support/compare.h"
#include "tests/support/kernel_support.h"

namespace llmb::cpu {
namespace {

using test::for_each_simd_target;
using test::GuardedFloats;
using test::random_normal;
using test::same_bytes;

std::vector<float> run(const std::vector<float>& gate_up, int64_t rows, int64_t intermediate, ThreadPool& pool) {
  const std::vector<float> before = gate_up;
  GuardedFloats out(rows * intermediate);
  silu_mul(gate_up.data(), rows, intermediate, out.data(), pool);
  CHECK(out.guards_untouched());
  CHECK(same_bytes(gate_up, before));
  return out.copy();
}

}  // namespace

TEST_CASE("silu_mul is as close to fp64 as naive fp32, for any width") {
  ThreadPool pool(2);
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const int64_t n : {1, 7, 15, 16, 17, 33, 1536, 4095, 4096, 4097, 8200}) {
      for (const int64_t rows : {0, 1, 2, 9}) {
        CAPTURE(n);
        CAPTURE(rows);
        const std::vector<float> x = random_normal(rows * 2 * n, static_cast<uint32_t>(n), 4);
        std::vector<double> expected;
        std::vector<float> naive;
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t i = 0; i < n; ++i) {
            const float gate = x[r * 2 * n + i], up = x[r * 2 * n + n + i];
            expected.push_back(gate / (1 + std::exp(-double{gate})) * up);
            naive.push_back(gate / (1 + std::exp(-gate)) * up);
          }
        }
        const std::vector<float> actual = run(x, rows, n, pool);
        CHECK(test::compare(actual, expected, 6e-7, 1e-30) == "");
        CHECK(test::relative_error(actual, expected) <= 2 * test::relative_error(naive, expected) + 1e-9);
      }
    }
  });
}

TEST_CASE(
    "silu over the whole range of floats: relative error below 5 ulp where the result is normal, right limits beyond") {
  ThreadPool pool(1);
  std::vector<float> gates;
  for (float x = -87; x <= 120; x += 0.0371f) gates.push_back(x);
  const int64_t num_normal = static_cast<int64_t>(gates.size());
  const float inf = std::numeric_limits<float>::infinity();
  for (const float x : {-1e30f, -200.0f, 1e30f, 0.0f, -0.0f, inf, std::nanf("")}) gates.push_back(x);
  const int64_t n = static_cast<int64_t>(gates.size());
  std::vector<float> gate_up = gates;
  gate_up.resize(2 * n, 1.0f);
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    const std::vector<float> out = run(gate_up, 1, n, pool);
    for (int64_t i = 0; i < num_normal; ++i) {
      const double expected = gates[i] / (1 + std::exp(-double{gates[i]}));
      CAPTURE(gates[i]);
      CHECK(std::fabs(out[i] - expected) <= 3e-7 * std::fabs(expected));
    }
    CHECK(std::fabs(out[num_normal]) == 0);
    CHECK(std::fabs(out[num_normal + 1]) == 0);
    CHECK(out[num_normal + 2] == 1e30f);
    CHECK(out[num_normal + 3] == 0);
    CHECK(out[num_normal + 4] == 0);
    CHECK(out[num_normal + 5] == inf);
    CHECK(std::isnan(out[num_normal + 6]));
  });
}

TEST_CASE("silu_mul is bit-identical for any batch, thread count and position in a vector, on targets of one kind") {
  ThreadPool one(1), three(3);
  constexpr int64_t kRows = 11, kN = 1003;
  const std::vector<float> x = random_normal(kRows * 2 * kN, 3, 3);
  std::map<bool, std::vector<float>> first;
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    const std::vector<float> whole = run(x, kRows, kN, one);
    CHECK(same_bytes(whole, run(x, kRows, kN, three)));
    for (int64_t r = 0; r < kRows; ++r) {
      const std::vector<float> row(x.begin() + r * 2 * kN, x.begin() + (r + 1) * 2 * kN);
      CHECK(same_bytes(std::span(whole).subspan(r * kN, kN), run(row, 1, kN, three)));
    }
    const std::vector<float> alone = run({x[5], x[kN + 5]}, 1, 1, one);
    CHECK(same_bytes(alone, std::span(whole).subspan(5, 1)));
    const auto [it, is_first] = first.emplace(test::has_fused_multiply_add(target), whole);
    if (!is_first) CHECK(same_bytes(it->second, whole));
  });
}

namespace {

template <typename T>
T reference(const ActivationSpec& spec, T gate, T up) {
  switch (spec.kind) {
    case Activation::kSilu:
      return gate / (1 + std::exp(-gate)) * up;
    case Activation::kGelu:
      return gate / 2 * (1 + std::erf(gate * static_cast<T>(0.70710678118654752))) * up;
    case Activation::kGeluTanh: {
      const T u = static_cast<T>(0.79788456080286536) * (gate + static_cast<T>(0.044715) * gate * gate * gate);
      return gate / 2 * (1 + std::tanh(u)) * up;
    }
    case Activation::kRelu:
      return (gate > 0 ? gate : 0) * up;
    case Activation::kRelu2:
      return (gate > 0 ? gate * gate : 0) * up;
    case Activation::kTanh:
      return std::tanh(gate) * up;
    case Activation::kClampedSwiglu:
      break;
  }
  const T limit = static_cast<T>(spec.limit), g = std::min(gate, limit), u = std::clamp(up, -limit, limit);
  return (u + 1) * g / (1 + std::exp(-static_cast<T>(spec.alpha) * g));
}

const ActivationSpec kSpecs[] = {{Activation::kSilu, false},
                                 {Activation::kGelu},
                                 {Activation::kGelu, false},
                                 {Activation::kGeluTanh},
                                 {Activation::kGeluTanh, false},
                                 {Activation::kRelu},
                                 {Activation::kRelu, false},
                                 {Activation::kRelu2, false},
                                 {Activation::kTanh, false},
                                 {Activation::kClampedSwiglu},
                                 {Activation::kClampedSwiglu, true, 1.1f, 1.5f}};

}  // namespace

TEST_CASE("every activation is as close to fp64 as naive fp32, gated and not, for any width") {
  ThreadPool one(1), three(3);
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const ActivationSpec& spec : kSpecs) {
      CAPTURE(static_cast<int>(spec.kind));
      CAPTURE(spec.gated);
      for (const int64_t n : {1, 15, 16, 17, 33, 4097}) {
        for (const int64_t rows : {0, 1, 3}) {
          const int64_t width = spec.gated ? 2 * n : n;
          const std::vector<float> x = random_normal(rows * width, static_cast<uint32_t>(n), 4);
          std::vector<double> expected;
          std::vector<float> naive;
          for (int64_t r = 0; r < rows; ++r) {
            for (int64_t i = 0; i < n; ++i) {
              const float gate = x[r * width + i], up = spec.gated ? x[r * width + n + i] : 1;
              expected.push_back(reference<double>(spec, gate, up));
              naive.push_back(reference<float>(spec, gate, up));
            }
          }
          GuardedFloats out(rows * n), threaded(rows * n);
          activate(spec, x.data(), rows, n, out.data(), one);
          activate(spec, x.data(), rows, n, threaded.data(), three);
          CHECK(out.guards_untouched());
          CHECK(same_bytes(out.span(), threaded.span()));
          CHECK(test::relative_error(out.copy(), expected) <= 2 * test::relative_error(naive, expected) + 1.2e-7);
        }
      }
    }
  });
}

TEST_CASE("gelu over the whole range: absolute error below 2^-22 of the input, 0 far below, x far above, NaN for NaN") {
  ThreadPool pool(1);
  std::vector<float> x;
  for (float v = -20; v <= 20; v += 0.00137f) x.push_back(v);
  const size_t num_checked = x.size();
  for (const float v : {-1e30f, 1e30f, 0.0f, std::nanf("")}) x.push_back(v);
  const auto n = static_cast<int64_t>(x.size());
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const Activation kind : {Activation::kGelu, Activation::kGeluTanh}) {
      const ActivationSpec spec{kind, false};
      std::vector<float> out(x.size());
      activate(spec, x.data(), 1, n, out.data(), pool);
      for (size_t i = 0; i < num_checked; ++i) {
        CAPTURE(x[i]);
        CHECK(std::fabs(out[i] - reference<double>(spec, x[i], 1)) <= 0x1p-22 * std::fabs(x[i]));
      }
      CHECK(std::fabs(out[num_checked]) == 0);
      CHECK(out[num_checked + 1] == 1e30f);
      CHECK(out[num_checked + 2] == 0);
      CHECK(std::isnan(out[num_checked + 3]));
    }
  });
}

TEST_CASE("activate_times is the gated activation of columns that lie elsewhere") {
  ThreadPool pool(3);
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const Activation kind : {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kRelu})
      for (const int64_t width : {1, 6, 16, 33, 5000}) {
        constexpr int64_t kRows = 3;
        const int64_t stride = width + 7;
        const std::vector<float> x = random_normal(kRows * width, 1, 2), y = random_normal(kRows * stride, 2, 2);
        std::vector<float> both;
        for (int64_t r = 0; r < kRows; ++r) {
          both.insert(both.end(), x.begin() + r * width, x.begin() + (r + 1) * width);
          both.insert(both.end(), y.begin() + r * stride + 5, y.begin() + r * stride + 5 + width);
        }
        std::vector<float> expected(kRows * width);
        GuardedFloats actual(kRows * width);
        activate({kind}, both.data(), kRows, width, expected.data(), pool);
        activate_times(kind, x.data(), y.data() + 5, stride, kRows, width, actual.data(), pool);
        CHECK(same_bytes(actual.copy(), expected));
        CHECK(actual.guards_untouched());
      }
  });
}

}  // namespace llmb::cpu
