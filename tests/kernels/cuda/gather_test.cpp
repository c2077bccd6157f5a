#include "kernels/cuda/gather.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"

namespace llmb::cuda {

using test::converted;
using test::DeviceArray;

TEST_CASE_TEMPLATE("gather_rows copies the chosen rows in order, and zeros for padded ones", T, float, __nv_bfloat16,
                   __half) {
  for (const int64_t width : {1, 3, 8, 128, 1023, 1024, 1032}) {
    CAPTURE(width);
    const std::vector<T> x = converted<T>(test::random_normal(9 * width, 1));
    const std::vector<int32_t> rows = {8, 0, 3, -1, 3};
    DeviceArray<T> from(x), out(rows.size() * static_cast<size_t>(width));
    DeviceArray<int32_t> indices(rows);
    gather_rows(from.data(), indices.data(), static_cast<int64_t>(rows.size()), width, out.data(), nullptr);
    std::vector<T> expected;
    for (const int32_t row : rows)
      for (int64_t i = 0; i < width; ++i)
        expected.push_back(row < 0 ? from_float<T>(0) : x[static_cast<size_t>(row * width + i)]);
    CHECK(out.holds(expected));
    CHECK(out.check_guards());
    CHECK(from.holds(x));
    CHECK(indices.holds(rows));
  }
  gather_rows<T>(nullptr, nullptr, 0, 8, nullptr, nullptr);
}

// Around the rows that a block takes at a time (64); words of 2, 4 and 16 bytes, and an array that is not aligned to 16.
TEST_CASE_TEMPLATE("keep_rows moves the chosen rows to the front, in place", T, float, __nv_bfloat16) {
  for (const int64_t width : {1, 3, 8, 33, 1032})
    for (const int32_t num_kept : {0, 1, 15, 16, 63, 64, 65, 200})
      for (const int32_t spread : {1, 2, 3}) {
        CAPTURE(width);
        CAPTURE(num_kept);
        CAPTURE(spread);
        std::vector<int32_t> kept;  // the first rows, where they stand; then with gaps
        for (int32_t i = 0; i < num_kept; ++i) kept.push_back(i < 10 ? i : 10 + (i - 10) * spread + (spread - 1));
        const int64_t num_rows = kept.empty() ? 2 : kept.back() + 2;
        const std::vector<T> x = converted<T>(test::random_normal(num_rows * width, 4));
        DeviceArray<T> rows(x);
        DeviceArray<int32_t> indices(kept);
        keep_rows(rows.data(), indices.data(), num_kept, width * int64_t{sizeof(T)}, nullptr);
        std::vector<T> expected = x;
        for (size_t i = 0; i < kept.size(); ++i)
          std::copy_n(x.begin() + kept[i] * width, width, expected.begin() + static_cast<int64_t>(i) * width);
        CHECK(rows.holds(expected));
        CHECK(rows.check_guards());
        CHECK(indices.holds(kept));
      }
}

namespace {

// Runs at the borders of what a block takes: of no row, one, its warps ± 1, several rounds of them.
template <class T, class Out>
void check_means(int64_t width) {
  CAPTURE(width);
  const std::vector<int32_t> begins = {0, 3, 0, 1, 2, 5, 0}, ends = {1, 3, 7, 9, 11, 39, 40};
  const std::vector<T> x = converted<T>(test::random_normal(40 * width, 3));
  DeviceArray<T> from(x);
  DeviceArray<int32_t> first(begins), last(ends);
  const auto means_of = [&](size_t begin, size_t count) {
    DeviceArray<Out> out(count * static_cast<size_t>(width));
    mean_rows(from.data(), first.data() + begin, last.data() + begin, static_cast<int64_t>(count), width, out.data(),
              nullptr);
    CHECK(out.check_guards());
    return out.download_floats();
  };
  const std::vector<float> means = means_of(0, begins.size());
  for (size_t run = 0; run < begins.size(); ++run) {
    CAPTURE(run);
    for (int64_t i = 0; i < width; ++i) {
      double sum = 0;
      for (int32_t row = begins[run]; row < ends[run]; ++row) sum += to_float(x[static_cast<size_t>(row * width + i)]);
      const double exact = sum / std::max(1, ends[run] - begins[run]);
      const float actual = means[run * static_cast<size_t>(width) + static_cast<size_t>(i)];
      const bool is_near = std::fabs(actual - exact) <= (sizeof(Out) == 2 ? 0.004 * std::fabs(exact) : 0) + 1e-6;
      CHECK(is_near);
      if (ends[run] == begins[run] + 1) CHECK(actual == to_float(x[static_cast<size_t>(begins[run] * width + i)]));
    }
    const auto begin = means.begin() + static_cast<int64_t>(run) * width;
    CHECK(test::same_bytes(means_of(run, 1), std::vector<float>(begin, begin + width)));
  }
}

}  // namespace

TEST_CASE("mean_rows: near fp64 at every number of rows, a single row as it is, the same bits alone and in a batch") {
  for (const int64_t width : {1, 7, 32, 33, 256, 264, 1024}) {
    check_means<float, float>(width);
    check_means<__nv_bfloat16, float>(width);
    check_means<__nv_bfloat16, __nv_bfloat16>(width);
    check_means<__half, float>(width);
    check_means<__half, __half>(width);
  }
  mean_rows<float, float>(nullptr, nullptr, nullptr, 0, 8, nullptr, nullptr);
}

}  // namespace llmb::cuda
