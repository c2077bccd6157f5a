#include "kernels/cuda/rank_parts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "tests/support/compare.h"
#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"

namespace llmb::cuda {

using test::converted;
using test::DeviceArray;
using test::random_normal;

namespace {

std::vector<TokenId> some_tokens(int64_t rows) {
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < rows; ++i) tokens.push_back(static_cast<TokenId>(i * 37 % 101));
  return tokens;
}

}  // namespace

TEST_CASE_TEMPLATE("sum_parts adds in the order of parts and rounds once", T, float, __nv_bfloat16, __half) {
  for (const int32_t num_parts : {1, 2, 3, 8})
    for (const int64_t count : {1, 7, 8, 2047, 2048, 2056}) {
      CAPTURE(num_parts);
      CAPTURE(count);
      const std::vector<T> parts = converted<T>(random_normal(num_parts * count, 3));
      DeviceArray<T> p(parts), out(static_cast<size_t>(count));
      sum_parts(p.data(), num_parts, count, out.data(), nullptr);
      std::vector<T> expected;
      for (int64_t i = 0; i < count; ++i) {
        float sum = to_float(parts[i]);
        for (int32_t part = 1; part < num_parts; ++part) sum += to_float(parts[part * count + i]);
        expected.push_back(from_float<T>(sum));
      }
      CHECK(out.holds(expected));
      CHECK(out.check_guards());
      CHECK(p.holds(parts));
      for (int32_t own = 0; own < num_parts; ++own) {
        const auto from = parts.begin() + own * count;
        std::vector<T> others = parts;
        std::fill_n(others.begin() + own * count, count, from_float<T>(1e4f));
        DeviceArray<T> other_parts(others), x(std::vector<T>(from, from + count));
        sum_other_parts(other_parts.data(), num_parts, own, count, x.data(), nullptr);
        CHECK(x.holds(expected));
        CHECK(x.check_guards());
      }
    }
}

TEST_CASE("tokens of another part become row 0, and their rows zeros") {
  for (const int64_t rows : {1, 2, 255, 256, 257})
    for (const int64_t width : {1, 64, 257}) {
      const std::vector<TokenId> tokens = some_tokens(rows);
      const std::vector<float> x = random_normal(rows * width, 4);
      const int64_t begin = 32, count = 32;
      DeviceArray<TokenId> t(tokens), own(static_cast<size_t>(rows));
      DeviceArray<float> values(x);
      own_tokens(t.data(), begin, count, rows, own.data(), nullptr);
      clear_other_rows(t.data(), begin, count, rows, width, values.data(), nullptr);
      std::vector<TokenId> expected;
      std::vector<float> cleared = x;
      for (int64_t i = 0; i < rows; ++i) {
        const bool is_own = tokens[i] >= begin && tokens[i] < begin + count;
        expected.push_back(is_own ? static_cast<TokenId>(tokens[i] - begin) : 0);
        if (!is_own) std::fill_n(cleared.begin() + i * width, width, 0.0f);
      }
      CHECK(own.holds(expected));
      CHECK(values.holds(cleared));
      CHECK(own.check_guards());
      CHECK(values.check_guards());
    }
}

TEST_CASE_TEMPLATE("a norm over parts of columns is as close to fp64 as the sums allow", T, float, __nv_bfloat16,
                   __half) {
  for (const int64_t width : {1, 31, 32, 100})
    for (const int64_t rows : {1, 4, 5}) {
      CAPTURE(width);
      CAPTURE(rows);
      const int64_t stride = width + 8;
      const int32_t num_parts = 3;
      std::vector<std::vector<T>> x;
      DeviceArray<float> sums(static_cast<size_t>(num_parts * (rows + 1)));
      const std::vector<float> weight = random_normal(width, 9);
      DeviceArray<float> w(weight);
      std::vector<std::unique_ptr<DeviceArray<T>>> arrays;
      for (int32_t part = 0; part < num_parts; ++part) {
        x.push_back(converted<T>(random_normal(rows * stride, 20 + static_cast<uint32_t>(part))));
        arrays.push_back(std::make_unique<DeviceArray<T>>(x.back()));
        square_sums(arrays.back()->data() + 2, stride, width, rows, sums.data() + part * (rows + 1), nullptr);
      }
      for (auto& array : arrays)
        norm_by_sums(array->data() + 2, stride, width, rows, sums.data(), num_parts, w.data(), 1e-5f, nullptr);
      for (int32_t part = 0; part < num_parts; ++part) {
        const std::vector<float> actual = arrays[static_cast<size_t>(part)]->download_floats();
        std::vector<double> expected;
        for (const T value : x[static_cast<size_t>(part)]) expected.push_back(to_float(value));
        for (int64_t row = 0; row < rows; ++row) {
          double sum = 0;
          for (const auto& of : x)
            for (int64_t i = 0; i < width; ++i) sum += std::pow(double{to_float(of[row * stride + 2 + i])}, 2);
          const double scale = 1 / std::sqrt(sum / static_cast<double>(num_parts * width) + 1e-5);
          for (int64_t i = 0; i < width; ++i) expected[row * stride + 2 + i] *= scale * weight[i];
        }
        const double tolerance = std::is_same_v<T, float> ? 2e-6 : std::is_same_v<T, __half> ? 1e-3 : 8e-3;
        CHECK(test::compare(actual, expected, tolerance, 1e-6) == "");
        CHECK(arrays[static_cast<size_t>(part)]->check_guards());
      }
      CHECK(sums.check_guards());
    }
}

}  // namespace llmb::cuda
