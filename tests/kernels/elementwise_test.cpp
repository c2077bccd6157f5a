#include "kernels/cpu/elementwise.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "tests/support/kernel_support.h"

namespace llmb::cpu {
namespace {

using test::for_each_simd_target;
using test::GuardedFloats;
using test::random_normal;
using test::same_bytes;

using Op = std::function<void(float* x, int64_t size, ThreadPool& pool)>;

std::vector<float> run(const Op& op, const std::vector<float>& values, ThreadPool& pool) {
  GuardedFloats x(static_cast<int64_t>(values.size()));
  std::copy(values.begin(), values.end(), x.data());
  op(x.data(), static_cast<int64_t>(values.size()), pool);
  CHECK(x.guards_untouched());
  return x.copy();
}

constexpr int64_t kSizes[] = {0, 1, 15, 16, 17, 33, 4097, 8192, 8193, 20000};

}  // namespace

TEST_CASE("add: one product and one sum, each rounded, for any size; a factor of 1 is the plain sum") {
  ThreadPool pool(2);
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const int64_t size : kSizes) {
      for (const float factor : {1.0f, 0.22f, -3.0f}) {
        const std::vector<float> residual = random_normal(size, 1), delta = random_normal(size, 2);
        std::vector<float> expected;
        for (int64_t i = 0; i < size; ++i) {
          const float product = factor * delta[i];
          expected.push_back(residual[i] + product);
        }
        const Op op = [&](float* x, int64_t n, ThreadPool& p) { add(x, delta.data(), factor, n, p); };
        CHECK(same_bytes(run(op, residual, pool), expected));
      }
    }
  });
}

TEST_CASE("add_columns: of each row of y the first columns, and nothing behind them") {
  constexpr int64_t kRows = 37, kWidth = 300, kStride = 710, kFirst = 310;
  ThreadPool pool(2);
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    const std::vector<float> before = random_normal(kRows * kWidth, 1), y = random_normal(kRows * kStride, 2);
    std::vector<float> expected;
    for (int64_t i = 0; i < kRows * kWidth; ++i) {
      const float product = 0.22f * y[i / kWidth * kStride + kFirst + i % kWidth];
      expected.push_back(before[i] + product);
    }
    const Op op = [&](float* x, int64_t n, ThreadPool& p) {
      add_columns(x, y.data() + kFirst, kStride, 0.22f, n / kWidth, kWidth, p);
    };
    CHECK(same_bytes(run(op, before, pool), expected));
  });
}

TEST_CASE("sum: parts are added in their order, for any number and size of them") {
  ThreadPool pool(2);
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const int64_t size : kSizes)
      for (const uint32_t num_parts : {1u, 2u, 5u}) {
        std::vector<std::vector<float>> values;
        std::vector<const void*> parts;
        for (uint32_t p = 0; p < num_parts; ++p) values.push_back(random_normal(size, 10 + p, 1 + static_cast<float>(p)));
        for (const auto& part : values) parts.push_back(part.data());
        std::vector<float> expected = values[0];
        for (uint32_t p = 1; p < num_parts; ++p)
          for (int64_t i = 0; i < size; ++i) expected[i] += values[p][i];
        const Op op = [&](float* out, int64_t n, ThreadPool& on) { sum(parts, n, out, on); };
        CHECK(same_bytes(run(op, std::vector<float>(static_cast<size_t>(size)), pool), expected));
      }
  });
}

TEST_CASE("scale and clamp are exact, for any size and beyond the ends") {
  ThreadPool pool(2);
  const float inf = std::numeric_limits<float>::infinity();
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const int64_t size : kSizes) {
      std::vector<float> values = random_normal(size, 3, 4), scaled, clamped;
      if (size > 2) values[0] = inf, values[size - 1] = -inf;
      for (const float x : values) scaled.push_back(x * 0.3f), clamped.push_back(std::min(std::max(x, -1.5f), 1.5f));
      CHECK(same_bytes(run([](float* x, int64_t n, ThreadPool& p) { scale(x, 0.3f, n, p); }, values, pool), scaled));
      CHECK(same_bytes(run([](float* x, int64_t n, ThreadPool& p) { clamp(x, 1.5f, n, p); }, values, pool), clamped));
    }
  });
}

TEST_CASE("softcap is within 4 ulp of fp64 over the whole range, and has the right limits") {
  ThreadPool pool(1);
  std::vector<float> values;
  for (float x = -600; x <= 600; x += 0.0371f) values.push_back(x);
  for (float x = 1e-30f; x < 1; x *= 1.7f) values.push_back(x), values.push_back(-x);
  const float inf = std::numeric_limits<float>::infinity();
  for (const float x : {0.0f, -0.0f, 1e30f, -1e30f, inf, -inf}) values.push_back(x);
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    for (const float cap : {1.0f, 30.0f, 50.0f}) {
      const Op op = [cap](float* x, int64_t n, ThreadPool& p) { softcap(x, cap, n, p); };
      const std::vector<float> out = run(op, values, pool);
      for (size_t i = 0; i < values.size(); ++i) {
        const double expected = double{cap} * std::tanh(double{values[i]} / double{cap});
        CAPTURE(values[i]);
        CHECK(std::fabs(out[i] - expected) <= 4.8e-7 * std::fabs(expected));
      }
    }
  });
}

TEST_CASE("an element's result does not depend on what is beside it, on threads or on targets of one kind") {
  ThreadPool one(1), three(3);
  const std::vector<float> values = random_normal(30011, 5, 20), delta = random_normal(30011, 6);
  const Op ops[] = {[&](float* x, int64_t n, ThreadPool& p) { add(x, delta.data(), 0.7f, n, p); },
                    [](float* x, int64_t n, ThreadPool& p) { scale(x, 1.1f, n, p); },
                    [](float* x, int64_t n, ThreadPool& p) { softcap(x, 30, n, p); },
                    [](float* x, int64_t n, ThreadPool& p) { clamp(x, 9, n, p); }};
  for (const Op& op : ops) {
    std::map<bool, std::vector<float>> first;
    for_each_simd_target([&](const std::string& target) {
      CAPTURE(target);
      const std::vector<float> whole = run(op, values, one);
      CHECK(same_bytes(whole, run(op, values, three)));
      for (const int64_t n : {1, 5, 16, 31})
        CHECK(same_bytes(run(op, {values.begin(), values.begin() + n}, one), std::span(whole).first(n)));
      const auto [it, is_first] = first.emplace(test::has_fused_multiply_add(target), whole);
      if (!is_first) CHECK(same_bytes(it->second, whole));
    });
  }
}

TEST_CASE("add_gated adds y times the logistic function of its row's gate, or y") {
  ThreadPool pool(2);
  for (const int64_t width : {1, 17, 300}) {
    constexpr int64_t kRows = 40;
    const std::vector<float> x = random_normal(kRows * width, 1), y = random_normal(kRows * width, 2);
    const std::vector<float> gate = random_normal(kRows, 3, 3);
    for (const bool is_gated : {false, true}) {
      const Op op = [&](float* to, int64_t, ThreadPool& p) {
        add_gated(to, y.data(), is_gated ? gate.data() : nullptr, kRows, width, p);
      };
      const std::vector<float> out = run(op, x, pool);
      for (int64_t i = 0; i < kRows * width; ++i) {
        const double weight = is_gated ? 1 / (1 + std::exp(-double{gate[i / width]})) : 1;
        const double expected = x[i] + weight * y[i];
        CHECK(std::fabs(out[i] - expected) <= 2.4e-7 * (std::fabs(x[i]) + std::fabs(y[i])));
      }
    }
  }
}

TEST_CASE("grow_queries grows q with its position, from the step's end on, and leaves k and v") {
  ThreadPool pool(2);
  const std::vector<int32_t> positions = {0, 6, 7, 8, 15, 1000000};
  constexpr int64_t kQSize = 33, kStride = 50;
  const std::vector<float> qkv(positions.size() * kStride, 1.0f);
  const Op op = [&](float* to, int64_t, ThreadPool& p) {
    grow_queries(to, positions.data(), {0.5, 8}, static_cast<int64_t>(positions.size()), kQSize, kStride, p);
  };
  const std::vector<float> out = run(op, qkv, pool);
  for (size_t i = 0; i < out.size(); ++i) {
    const double expected = 1 + 0.5 * std::log1p((positions[i / kStride] + 1) / 8);
    CHECK(out[i] == (i % kStride < kQSize ? static_cast<float>(expected) : 1));
  }
  CHECK(out[kStride] == 1);
  CHECK(out[2 * kStride] > 1);
}

TEST_CASE("NaN stays NaN, and stays where it is") {
  ThreadPool pool(1);
  for_each_simd_target([&](const std::string& target) {
    CAPTURE(target);
    std::vector<float> values(20, 1.0f);
    values[3] = values[19] = std::nanf("");
    const Op ops[] = {[](float* x, int64_t n, ThreadPool& p) { scale(x, 0.5f, n, p); },
                      [](float* x, int64_t n, ThreadPool& p) { softcap(x, 30, n, p); },
                      [](float* x, int64_t n, ThreadPool& p) { clamp(x, 9, n, p); }};
    for (const Op& op : ops) {
      const std::vector<float> out = run(op, values, pool);
      for (int i = 0; i < 20; ++i) CHECK(std::isnan(out[i]) == (i == 3 || i == 19));
    }
  });
}

}  // namespace llmb::cpu
