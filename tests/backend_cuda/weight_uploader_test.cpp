// Matrices on their way to the device.
#include "backend/cuda/weight_uploader.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/cuda/quantize_rows.h"
#include "tests/support/device_array.h"
#include "tests/support/kernel_support.h"

namespace llmb::test {

// 69 rows are sent at a time.
TEST_CASE("columns of rows in int8 have the numbers and scales of whole rows, whichever rows are sent together") {
  constexpr int64_t kRows = 71, kCols = 60001;
  std::vector<float> values = random_normal(kRows * kCols, 1);
  for (int64_t row = 0; row < kRows; ++row) values[static_cast<size_t>(row * kCols + row * 800)] = 10;
  const TensorView matrix = {values.data(), DType::kF32, kRows, kCols};
  const int64_t whole_bytes = cuda::int8_row_bytes(kCols);
  WeightUploader uploader(nullptr);
  DeviceArray<int8_t> whole(kRows * whole_bytes);
  DeviceArray<float> scales(kRows);
  uploader.upload_int8(matrix, whole.data(), scales.data());
  const std::vector<int8_t> expected = whole.download();
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 60001}, {256, 1024}, {41, 333}, {60000, 1}}) {
    CAPTURE(first);
    const int64_t row_bytes = cuda::int8_row_bytes(count);
    DeviceArray<int8_t> columns(std::vector<int8_t>(static_cast<size_t>(kRows * row_bytes), 3));
    DeviceArray<float> own_scales(kRows);
    uploader.upload_int8_columns(matrix, first, count, columns.data(), own_scales.data());
    const std::vector<int8_t> numbers = columns.download();
    CHECK(own_scales.download() == scales.download());
    CHECK((columns.check_guards() && own_scales.check_guards()));
    for (int64_t row = 0; row < kRows; ++row) {
      const auto* const own = &numbers[static_cast<size_t>(row * row_bytes)];
      CHECK(std::equal(own, own + count, &expected[static_cast<size_t>(row * whole_bytes + first)]));
      CHECK(std::count(own + count, own + row_bytes, 0) == row_bytes - count);
    }
  }
}

}  // namespace llmb::test
