// When a batch starts and who may join it, for each mode.
#include <doctest/doctest.h>

#include "tests/scheduler/harness.h"

namespace llmb::test {

namespace {

WaitingLine line(int64_t num_running, int64_t num_members, int64_t num_waiting, double oldest_arrival_ms = 0) {
  return {num_running, num_members, num_waiting, oldest_arrival_ms};
}

}  // namespace

TEST_CASE("continuous: everybody may join at every step") {
  const SchedulerConfig config = small_config();
  CHECK(num_batch_members(config, line(0, 0, 0), 0, true) == 0);
  CHECK(num_batch_members(config, line(0, 0, 3), 0, true) == 3);
  CHECK(num_batch_members(config, line(7, 1, 30), 0, true) == 30);
  CHECK_FALSE(batch_deadline_ms(config, line(0, 0, 3)).has_value());
}

TEST_CASE("none: one at a time, without waiting for more") {
  const SchedulerConfig config = small_config(BatchingMode::kNone);
  CHECK(num_batch_members(config, line(0, 0, 0), 0, true) == 0);
  CHECK(num_batch_members(config, line(0, 0, 1), 0, true) == 1);
  CHECK(num_batch_members(config, line(0, 0, 9), 0, false) == 1);
  CHECK(num_batch_members(config, line(1, 0, 9), 0, false) == 0);
  CHECK(num_batch_members(config, line(0, 1, 9), 0, false) == 1);
}

TEST_CASE("static: starts when full or when no more may come: size - 1, on, + 1") {
  const SchedulerConfig config = small_config(BatchingMode::kStatic);
  CHECK(num_batch_members(config, line(0, 0, 7), 1e9, true) == 0);
  CHECK(num_batch_members(config, line(0, 0, 8), 0, true) == 8);
  CHECK(num_batch_members(config, line(0, 0, 9), 0, true) == 8);
  CHECK(num_batch_members(config, line(0, 0, 7), 0, false) == 7);
  CHECK(num_batch_members(config, line(0, 0, 0), 0, false) == 0);
  // Nobody joins a batch that runs; its own members still do.
  CHECK(num_batch_members(config, line(1, 0, 9), 0, false) == 0);
  CHECK(num_batch_members(config, line(1, 2, 9), 0, false) == 2);
  CHECK(num_batch_members(config, line(0, 2, 9), 0, false) == 2);
  CHECK_FALSE(batch_deadline_ms(config, line(0, 0, 3)).has_value());
}

TEST_CASE("dynamic: as static, but starts a window after the oldest arrived: just before, on, after") {
  const SchedulerConfig config = small_config(BatchingMode::kDynamic);
  CHECK(num_batch_members(config, line(0, 0, 3, 5.0), 14.999, true) == 0);
  CHECK(num_batch_members(config, line(0, 0, 3, 5.0), 15.0, true) == 3);
  CHECK(num_batch_members(config, line(0, 0, 3, 5.0), 15.001, true) == 3);
  CHECK(num_batch_members(config, line(0, 0, 8, 5.0), 5.0, true) == 8);
  CHECK(num_batch_members(config, line(0, 0, 3, 5.0), 5.0, false) == 3);
  CHECK(num_batch_members(config, line(1, 0, 8, 5.0), 99.0, true) == 0);
  CHECK(batch_deadline_ms(config, line(0, 0, 3, 5.0)) == 15.0);
  CHECK_FALSE(batch_deadline_ms(config, line(0, 0, 0)).has_value());
  CHECK_FALSE(batch_deadline_ms(config, line(1, 0, 3)).has_value());
  CHECK_FALSE(batch_deadline_ms(config, line(0, 1, 3)).has_value());
}

}  // namespace llmb::test
