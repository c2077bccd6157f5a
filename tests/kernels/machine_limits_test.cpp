#include "kernels/cpu/machine_limits.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "tests/support/kernel_support.h"

namespace llmb::cpu {

TEST_CASE("limits are finite and positive with 1 and 2 threads, on every target") {
  for (const int num_threads : {1, 2}) {
    ThreadPool pool(num_threads);
    test::for_each_simd_target([&](const std::string& target) {
      CAPTURE(target);
      const double flops = measure_peak_flops(pool);
      CHECK(flops > 1e6);
      CHECK(flops < 1e16);
      const double int8_ops = measure_peak_int8_ops(pool);
      CHECK(int8_ops > 1e6);
      CHECK(int8_ops < 1e16);
      const double bf16_flops = measure_peak_bf16_flops(pool);
      CHECK(bf16_flops > 1e6);
      CHECK(bf16_flops < 1e16);
    });
    for (const int64_t max_bytes : {int64_t{1}, int64_t{64} << 20}) {
      const double bandwidth = measure_read_bandwidth(pool, max_bytes);
      CHECK(bandwidth > 1e6);
      CHECK(bandwidth < 1e15);
    }
  }
  CHECK(last_level_cache_bytes() >= 0);
  CHECK(last_level_cache_bytes() < int64_t{1} << 40);
}

TEST_CASE("the target's name follows run-time dispatch") {
  test::for_each_simd_target([](const std::string& target) { CHECK(simd_target_name() == target); });
}

}  // namespace llmb::cpu
