// Policies for requests that arrive over time.
#include "scheduler/policies.h"

#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "tests/scheduler/harness.h"

namespace llmb::test {

namespace {

SchedulerConfig config_with(Policy policy, int32_t max_num_seqs) {
  SchedulerConfig config = small_config();
  config.max_num_seqs = max_num_seqs;
  config.policy = std::move(policy);
  return config;
}

int64_t level(const FeedbackQueue& queue, int32_t num_prompt, int32_t num_output, double now_ms) {
  Sequence sequence(0, 0, make_request(num_prompt, 30'000), BlockTable(16), 30'000, /*arrival_ms=*/0);
  for (int32_t i = 0; i < num_output; ++i) sequence.append_token(3);
  return multi_level_feedback_queue(queue).rank(sequence, now_ms).rank.value;
}

}  // namespace

TEST_CASE("shortest job first: the least work of those that wait, and nobody gives way") {
  Harness h(config_with(shortest_job_first(), 1));
  h.add(4, 8);
  REQUIRE(h.step());
  h.add(6, 3);  // 9 tokens
  h.add(2, 2);  // 4
  h.add(3, 3);  // 6
  std::vector<SeqId> order;
  while (h.scheduler.has_work()) {
    REQUIRE(h.step());
    const SeqId seq = h.plan.entries[0].seq;
    if (order.empty() || order.back() != seq) order.push_back(seq);
  }
  CHECK(order == std::vector<SeqId>{0, 2, 3, 1});
  CHECK(h.scheduler.num_preemptions_total() == 0);
}

TEST_CASE("levels of the feedback queue: quantum - 1, on, + 1; long prompts join lower; patience ends it all") {
  const FeedbackQueue queue = {.first_quantum = 4, .prompt_tokens_per_token = 8, .patience_ms = 100};
  for (const auto& [num_output, expected] : {std::pair{0, 0}, {3, 0}, {4, 1}, {15, 1}, {16, 2}, {63, 2}, {64, 3}, {9999, 6}, {16384, 7}, {20000, 7}})
    CHECK(level(queue, 1, num_output, 0) == expected);
  for (const auto& [num_prompt, expected] : {std::pair{7, 0}, {31, 0}, {32, 1}, {127, 1}, {128, 2}, {200'000, 7}})
    CHECK(level(queue, num_prompt, 0, 0) == expected);
  CHECK(level(queue, 32, 12, 0) == 2);
  CHECK(level(queue, 32, 12, 99.9) == 2);
  CHECK(level(queue, 32, 12, 100) == -1);
}

TEST_CASE("who has a long prompt gives way to a short one, once, and runs to its end") {
  Harness h(config_with(multi_level_feedback_queue({.first_quantum = 4, .prompt_tokens_per_token = 4}), 1));
  h.add(24, 20);
  for (int i = 0; i < 3; ++i) REQUIRE(h.step());
  for (int i = 0; i < 3; ++i) {
    const SeqId newcomer = h.add(4, 2);
    REQUIRE(h.step());
    CHECK(h.scheduler.running_ids() == std::vector<SeqId>{i == 0 ? newcomer : SeqId{0}});
    CHECK(h.scheduler.num_preemptions(0) == 1);
    while (i == 0 && h.scheduler.contains(newcomer)) REQUIRE(h.step());
    if (i == 0) REQUIRE(h.step());
  }
  for (int i = 0; h.scheduler.has_work() && i < 1000; ++i) h.step();
  CHECK_FALSE(h.scheduler.has_work());
}

}  // namespace llmb::test
