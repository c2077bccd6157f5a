#include "kernels/cuda/gather.h"

#include <doctest/doctest.h>

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

}  // namespace llmb::cuda
