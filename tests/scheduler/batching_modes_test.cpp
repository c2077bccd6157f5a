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

TEST_CASE("a continuous batch takes a newcomer in the step after its arrival") {
  Harness h(small_config());
  h.add(2, 9);
  REQUIRE(h.step());
  h.add(3, 9, 1);
  REQUIRE(h.step(1, true));
  CHECK(h.shape() == "0:1 1:3");
}

TEST_CASE("a static batch runs until its last sequence ended; finished ones leave, nobody joins") {
  SchedulerConfig config = small_config(BatchingMode::kStatic);
  config.max_num_seqs = 2;
  Harness h(config);
  h.add(2, 1);
  CHECK_FALSE(h.schedule(0, true));  // not full yet
  CHECK_FALSE(h.scheduler.next_wakeup_ms().has_value());
  h.add(2, 3);
  h.add(2, 2);
  REQUIRE(h.step(0, true));
  CHECK(h.shape() == "0:2 1:2");
  REQUIRE(h.step(0, true));
  CHECK(h.shape() == "1:1");
  REQUIRE(h.step(0, true));
  CHECK(h.shape() == "1:1");
  CHECK_FALSE(h.schedule(0, true));  // one waits, a second may come
  REQUIRE(h.step(0, false));         // none will
  CHECK(h.shape() == "2:2");
}

TEST_CASE("members of a static batch that lack budget or blocks at its start join later, strangers do not") {
  SchedulerConfig config = small_config(BatchingMode::kStatic);
  config.max_num_seqs = 2;
  config.max_num_batched_tokens = 4;
  Harness h(config);
  h.add(3, 2);
  h.add(3, 4);
  h.add(3, 1);
  REQUIRE(h.step());
  CHECK(h.shape() == "0:3 1:1");
  REQUIRE(h.step());
  CHECK(h.shape() == "0:1 1:2");
  REQUIRE(h.step());
  CHECK(h.shape() == "1:1");  // 0 ended, there is budget, 2 still waits

  config.max_num_batched_tokens = 64;
  config.num_blocks = 4;  // 16 slots
  Harness tight(config);
  tight.add(12, 2);
  tight.add(12, 2);
  REQUIRE(tight.step());
  CHECK(tight.shape() == "0:12");
  REQUIRE(tight.step());
  REQUIRE(tight.step());
  CHECK(tight.shape() == "1:12");
}

TEST_CASE("a preempted member comes back into its static batch before anyone else") {
  SchedulerConfig config = small_config(BatchingMode::kStatic);
  config.max_num_seqs = 2;
  config.block_size = 1;
  config.num_blocks = 10;
  Harness h(config);
  for (int i = 0; i < 4; ++i) h.add(2, 8);  // 9 blocks each in the end
  bool preempted = false;
  while (h.scheduler.contains(0) || h.scheduler.contains(1)) {
    REQUIRE(h.step());
    for (const StepEntry& entry : h.plan.entries) CHECK(entry.seq <= 1);
    preempted |= h.scheduler.contains(1) && h.scheduler.num_preemptions(1) > 0;
  }
  CHECK(preempted);
  REQUIRE(h.step());
  CHECK(h.shape() == "2:2 3:2");
}

TEST_CASE("a dynamic batch starts when its window closes or it is full, and says when to wake up") {
  SchedulerConfig config = small_config(BatchingMode::kDynamic);
  config.max_num_seqs = 3;
  Harness h(config);
  CHECK_FALSE(h.schedule(0, true));
  h.add(2, 2, 5);
  CHECK_FALSE(h.schedule(5, true));
  CHECK(h.scheduler.next_wakeup_ms() == 15.0);
  h.add(2, 1, 12);
  CHECK_FALSE(h.schedule(14.9, true));
  CHECK(h.scheduler.next_wakeup_ms() == 15.0);  // of the oldest
  REQUIRE(h.step(15, true));
  CHECK(h.shape() == "0:2 1:2");
  h.add(2, 1, 16);
  CHECK_FALSE(h.scheduler.next_wakeup_ms().has_value());  // a batch runs
  REQUIRE(h.step(16, true));
  CHECK(h.shape() == "0:1");
  CHECK(h.scheduler.next_wakeup_ms() == 26.0);
  h.add(2, 1, 17);
  h.add(2, 1, 17);
  REQUIRE(h.step(17, true));  // full
  CHECK(h.shape() == "2:2 3:2 4:2");
}

TEST_CASE("with a window of 0 a dynamic batch starts at once") {
  SchedulerConfig config = small_config(BatchingMode::kDynamic);
  config.batch_window_ms = 0;
  Harness h(config);
  h.add(2, 2, 5);
  CHECK(h.step(5, true));
}

TEST_CASE("finish() of members that wait lets the batch end") {
  SchedulerConfig config = small_config(BatchingMode::kStatic);
  config.max_num_seqs = 2;
  config.num_blocks = 4;
  Harness h(config);
  for (int i = 0; i < 3; ++i) h.add(12, 2);
  REQUIRE(h.step());
  CHECK(h.shape() == "0:12");
  h.scheduler.finish(1);
  h.check();
  REQUIRE(h.step());
  REQUIRE(h.step());
  CHECK(h.shape() == "2:12");
}

}  // namespace llmb::test
