#include "kernels/cpu/machine_limits.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "kernels/cpu/caches.h"
#include "tests/support/cpu_targets.h"
#include "tests/support/kernel_support.h"

namespace llmb::cpu {

namespace {

void check_rate(const Rate& rate, double end) {
  CHECK(rate.sustained > 1e6);
  CHECK(rate.sustained <= rate.best);
  CHECK(rate.best < end);
}

}  // namespace

TEST_CASE("limits are finite and positive with 1 and 2 threads, on every target") {
  for (const int num_threads : {1, 2}) {
    ThreadPool pool(num_threads);
    test::for_each_cpu_target([&](const std::string& target) {
      CAPTURE(target);
      for (const Rate& peak : {measure_peak_flops(pool), measure_peak_int8_ops(pool), measure_peak_bf16_flops(pool)})
        check_rate(peak, 1e16);
    });
    for (const int64_t max_bytes : {int64_t{1}, int64_t{64} << 20})
      check_rate(measure_read_bandwidth(pool, max_bytes), 1e15);
  }
  CHECK(last_level_cache_bytes() >= 0);
  CHECK(last_level_cache_bytes() < int64_t{1} << 40);
}

TEST_CASE("the target's name follows run-time dispatch") {
  test::for_each_cpu_target([](const std::string& target) { CHECK(simd_target_name() == target); });
}

}  // namespace llmb::cpu
