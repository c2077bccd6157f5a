#include "kernels/cuda/machine_limits.h"

#include <doctest/doctest.h>

#include <cmath>

#include "base/check.h"
#include "tests/support/device_array.h"

namespace llmb::cuda {

using test::DeviceArray;

TEST_CASE("copy_memory copies every byte and no more; reading changes nothing") {
  for (const int64_t words : {4, 8, 8188, 8192, 8196, 20000}) {
    std::vector<uint32_t> values(static_cast<size_t>(words));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint32_t>(i * 2654435761u);
    DeviceArray<uint32_t> from(values), to(values.size()), sink(1);
    copy_memory(from.data(), to.data(), words * 4, nullptr);
    CHECK(to.holds(values));
    CHECK(to.check_guards());
    read_memory(from.data(), words * 4, sink.data(), nullptr);
    CHECK(from.holds(values));
    CHECK(sink.download()[0] == 0xFFFFFFFFu);
  }
  DeviceArray<uint32_t> memory(8);
  CHECK_THROWS_AS(copy_memory(memory.data(), memory.data() + 4, 12, nullptr), CheckFailure);
  CHECK_THROWS_AS(read_memory(memory.data(), 0, memory.data(), nullptr), CheckFailure);
}

TEST_CASE("read_memory reads every word: the sum reaches the sink") {
  for (const size_t at : {0, 3, 8191, 19999}) {
    std::vector<uint32_t> values(20000, 0);
    values[at] = 0x9E3779B9u;
    DeviceArray<uint32_t> from(values), sink(1);
    read_memory(from.data(), 80000, sink.data(), nullptr);
    CHECK(sink.download()[0] == 0x9E3779B9u);
  }
}

TEST_CASE_TEMPLATE("fill_normal gives normal values that the seed decides", T, float, __nv_bfloat16, __half) {
  constexpr size_t kCount = 50001;
  const DType dtype = sizeof(T) == 4 ? DType::kF32 : std::is_same_v<T, __half> ? DType::kF16 : DType::kBF16;
  const auto fill = [&](uint32_t seed) {
    DeviceArray<T> values(kCount);
    fill_normal(values.data(), dtype, kCount, 2, seed, nullptr);
    CHECK(values.check_guards());
    return values.download_floats();
  };
  const std::vector<float> values = fill(1);
  CHECK(values == fill(1));
  CHECK(values != fill(2));
  double sum = 0, squares = 0, fourths = 0;
  for (const double x : values) sum += x, squares += x * x, fourths += x * x * x * x;
  CHECK(std::fabs(sum / kCount) <= 0.05);
  CHECK(std::fabs(squares / kCount - 4) <= 0.15);
  CHECK(std::fabs(fourths / kCount - 48) <= 4);  // 3 times the variance squared
}

}  // namespace llmb::cuda
