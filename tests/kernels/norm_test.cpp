#include "kernels/cpu/norm.h"

#include <doctest/doctest.h>

#include <cmath>
#include <map>

#include "tests/support/compare.h"
#include "tests/support/kernel_support.h"

namespace llmb::cpu {
namespace {

using test::for_each_simd_target;
using test::GuardedFloats;
using test::random_normal;
using test::same_bytes;

struct Output {
  std::vector<float> residual, out;
};

Output run(std::span<const float> residual, std::span<const float> delta, const std::vector<float>& weight,
           int64_t rows, ThreadPool& pool) {
  const int64_t hidden = static_cast<int64_t>(weight.size());
  GuardedFloats r(rows * hidden), out(rows * hidden);
  std::copy(residual.begin(), residual.end(), r.data());
  const std::vector<float> delta_before(delta.begin(), delta.end()), weight_before = weight;
  add_rms_norm(r.data(), delta.empty() ? nullptr : delta.data(), weight.data(), 1e-5f, rows, hidden, out.data(), pool);
  CHECK(r.guards_untouched());
  CHECK(out.guards_untouched());
  CHECK(same_bytes(delta, delta_before));
  CHECK(same_bytes(weight, weight_before));
  return {r.copy(), out.copy()};
}

}  // namespace

TEST_CASE("add_rms_norm is as close to fp64 as naive fp32, for any width, with and without delta") {
  ThreadPool pool(2);
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const int64_t hidden : {1, 2, 15, 16, 17, 31, 32, 33, 576, 1000, 4096}) {
      for (const int64_t rows : {0, 1, 3, 40}) {
        for (const bool with_delta : {false, true}) {
          CAPTURE(hidden);
          CAPTURE(rows);
          const std::vector<float> residual = random_normal(rows * hidden, 1, 3), weight = random_normal(hidden, 3);
          const std::vector<float> delta = with_delta ? random_normal(rows * hidden, 2) : std::vector<float>();
          const Output actual = run(residual, delta, weight, rows, pool);
          std::vector<float> sum = residual, naive(sum.size());
          std::vector<double> expected(sum.size());
          for (int64_t r = 0; r < rows; ++r) {
            double exact = 0;
            float single = 0;
            for (int64_t i = r * hidden; i < (r + 1) * hidden; ++i) {
              if (with_delta && !delta.empty()) sum[i] += delta[i];
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
          CHECK(test::relative_error(actual.out, expected) <= 2 * test::relative_error(naive, expected) + 1.2e-7);
        }
      }
    }
  });
}

TEST_CASE("a row's norm is bit-identical alone, in a batch, with 1 to 3 threads, and on targets of one kind") {
  constexpr int64_t kRows = 37, kHidden = 613;
  ThreadPool one(1), three(3);
  const std::vector<float> residual = random_normal(kRows * kHidden, 4), delta = random_normal(kRows * kHidden, 5),
                           weight = random_normal(kHidden, 6);
  std::map<bool, std::vector<float>> first;
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    const Output whole = run(residual, delta, weight, kRows, one);
    CHECK(same_bytes(whole.out, run(residual, delta, weight, kRows, three).out));
    for (int64_t r = 0; r < kRows; ++r) {
      const auto row = [&](const std::vector<float>& v) { return std::span(v).subspan(r * kHidden, kHidden); };
      CHECK(same_bytes(row(whole.out), run(row(residual), row(delta), weight, 1, three).out));
    }
    const auto [it, is_first] = first.emplace(test::has_fused_multiply_add(target), whole.out);
    if (!is_first) CHECK(same_bytes(it->second, whole.out));
  });
}

TEST_CASE("zeros give zeros, and a NaN stays in its row") {
  ThreadPool pool(2);
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    std::vector<float> residual(3 * 50, 0.0f);
    const std::vector<float> weight(50, 2.0f);
    residual[50 + 49] = std::nanf("");
    const Output out = run(residual, {}, weight, 3, pool);
    for (int i = 0; i < 150; ++i) {
      if (i / 50 == 1) CHECK(std::isnan(out.out[i]));
      else CHECK(out.out[i] == 0);
    }
  });
}

}  // namespace llmb::cpu
