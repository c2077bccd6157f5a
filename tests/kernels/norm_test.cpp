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

TEST_CASE(
    "add_layer_norm is as close to fp64 as naive fp32, for any width, with and without delta and bias, in place") {
  ThreadPool pool(2);
  constexpr float kEps = 1e-5f;
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const int64_t hidden : {2, 15, 16, 17, 31, 33, 576, 1000, 4096}) {
      for (const int64_t rows : {0, 1, 3, 40}) {
        for (const int variant : {0, 1, 2, 3}) {
          const bool with_delta = variant & 1, with_bias = variant & 2;
          CAPTURE(hidden);
          CAPTURE(rows);
          CAPTURE(variant);
          // A mean that is not small beside the deviation.
          std::vector<float> sum = random_normal(rows * hidden, 1, 3);
          for (float& x : sum) x += 2;
          const std::vector<float> weight = random_normal(hidden, 3), bias = random_normal(hidden, 4);
          const std::vector<float> delta = random_normal(rows * hidden, 2);
          GuardedFloats residual(rows * hidden), out(rows * hidden), both(rows * hidden);
          std::copy(sum.begin(), sum.end(), residual.data());
          std::copy(sum.begin(), sum.end(), both.data());
          const auto norm = [&](GuardedFloats& r, float* to) {
            add_layer_norm(r.data(), with_delta ? delta.data() : nullptr, weight.data(),
                           with_bias ? bias.data() : nullptr, kEps, rows, hidden, to, pool);
            CHECK(r.guards_untouched());
          };
          norm(residual, out.data());
          norm(both, both.data());
          CHECK(out.guards_untouched());
          CHECK(same_bytes(out.span(), both.span()));
          std::vector<float> naive(sum.size());
          std::vector<double> expected(sum.size());
          for (int64_t r = 0; r < rows; ++r) {
            double mean = 0, variance = 0;
            float mean1 = 0, variance1 = 0;
            const int64_t begin = r * hidden, end = begin + hidden;
            for (int64_t i = begin; i < end; ++i) {
              if (with_delta) sum[i] += delta[i];
              mean += sum[i] / static_cast<double>(hidden);
              mean1 += sum[i];
            }
            mean1 /= static_cast<float>(hidden);
            for (int64_t i = begin; i < end; ++i) {
              variance += (sum[i] - mean) * (sum[i] - mean) / static_cast<double>(hidden);
              variance1 += (sum[i] - mean1) * (sum[i] - mean1);
            }
            const float deviation1 = std::sqrt(variance1 / static_cast<float>(hidden) + kEps);
            for (int64_t i = begin; i < end; ++i) {
              const float b = with_bias ? bias[i - begin] : 0;
              expected[i] = (sum[i] - mean) / std::sqrt(variance + double{kEps}) * weight[i - begin] + b;
              naive[i] = (sum[i] - mean1) / deviation1 * weight[i - begin] + b;
            }
          }
          CHECK(same_bytes(residual.span(), sum));
          CHECK(test::relative_error(out.copy(), expected) <= 2 * test::relative_error(naive, expected) + 2.4e-7);
        }
      }
    }
  });
}

TEST_CASE("rms_norm_groups norms each group as add_rms_norm would, in place, and leaves the other columns alone") {
  ThreadPool one(1), two(2);
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const int64_t width : {1, 8, 17, 64, 576}) {
      for (const int64_t num_groups : {1, 3}) {
        constexpr int64_t kRows = 5, kBefore = 7, kAfter = 4;
        const int64_t stride = kBefore + num_groups * width + kAfter;
        const std::vector<float> values = random_normal(kRows * stride, 8, 2), weight = random_normal(width, 9);
        GuardedFloats x(kRows * stride);
        std::copy(values.begin(), values.end(), x.data());
        rms_norm_groups(x.data() + kBefore, stride, num_groups, weight.data(), width, 1e-5f, kRows, two);
        CHECK(x.guards_untouched());
        std::vector<float> expected = values;
        for (int64_t r = 0; r < kRows; ++r)
          for (int64_t g = 0; g < num_groups; ++g) {
            const auto group = std::span(values).subspan(r * stride + kBefore + g * width, width);
            const Output alone = run(group, {}, weight, 1, one);
            std::copy(alone.out.begin(), alone.out.end(), expected.begin() + r * stride + kBefore + g * width);
          }
        CHECK(same_bytes(x.span(), expected));
      }
    }
  });
}

TEST_CASE("layer_norm_groups norms each group as add_layer_norm would, by its own weight, and leaves the rest alone") {
  ThreadPool one(1), two(2);
  constexpr int64_t kRows = 5, kBefore = 7, kAfter = 4, kGroups = 3;
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const int64_t width : {2, 8, 17, 64}) {
      const int64_t stride = kBefore + kGroups * width + kAfter, all = kGroups * width;
      const std::vector<float> values = random_normal(kRows * stride, 8, 2), weight = random_normal(all, 9),
                               bias = random_normal(all, 10);
      for (const bool with_bias : {false, true}) {
        GuardedFloats x(kRows * stride);
        std::copy(values.begin(), values.end(), x.data());
        layer_norm_groups(x.data() + kBefore, stride, kGroups, weight.data(), with_bias ? bias.data() : nullptr, width,
                          1e-5f, kRows, two);
        CHECK(x.guards_untouched());
        std::vector<float> expected = values;
        for (int64_t r = 0; r < kRows; ++r)
          for (int64_t g = 0; g < kGroups; ++g) {
            float* group = expected.data() + r * stride + kBefore + g * width;
            add_layer_norm(group, nullptr, weight.data() + g * width, with_bias ? bias.data() + g * width : nullptr,
                           1e-5f, 1, width, group, one);
          }
        CHECK(same_bytes(x.span(), expected));
      }
    }
  });
}

TEST_CASE("a row's layer norm is bit-identical alone, with 1 to 3 threads, and on targets of one kind") {
  constexpr int64_t kRows = 23, kHidden = 613;
  ThreadPool one(1), three(3);
  const std::vector<float> residual = random_normal(kRows * kHidden, 4), weight = random_normal(kHidden, 6);
  const auto norm = [&](std::span<const float> from, int64_t rows, ThreadPool& pool) {
    std::vector<float> r(from.begin(), from.end()), out(r.size());
    add_layer_norm(r.data(), nullptr, weight.data(), weight.data(), 1e-5f, rows, kHidden, out.data(), pool);
    return out;
  };
  std::map<bool, std::vector<float>> first;
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    const std::vector<float> whole = norm(residual, kRows, one);
    CHECK(same_bytes(whole, norm(residual, kRows, three)));
    for (int64_t r = 0; r < kRows; ++r)
      CHECK(same_bytes(std::span(whole).subspan(r * kHidden, kHidden),
                       norm(std::span(residual).subspan(r * kHidden, kHidden), 1, three)));
    const auto [it, is_first] = first.emplace(test::has_fused_multiply_add(target), whole);
    if (!is_first) CHECK(same_bytes(it->second, whole));
  });
}

}  // namespace llmb::cpu
