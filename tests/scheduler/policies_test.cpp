// Policies for requests that arrive over time.
#include "scheduler/policies.h"

#include <doctest/doctest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "tests/scheduler/harness.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

namespace {

SchedulerConfig config_with(Policy policy, int32_t max_num_seqs) {
  SchedulerConfig config = small_config();
  config.max_num_seqs = max_num_seqs;
  config.policy = std::move(policy);
  return config;
}

int64_t rank(const FeedbackQueue& queue, int32_t num_prompt, int32_t num_output, double arrival_ms) {
  Sequence sequence(0, 0, make_request(num_prompt, 30'000), BlockTable(16), 30'000, arrival_ms);
  for (int32_t i = 0; i < num_output; ++i) sequence.append_token(3);
  const Ranking ranking = multi_level_feedback_queue(queue).rank(sequence, arrival_ms + 1e6);
  CHECK(std::isinf(ranking.until_ms));
  return ranking.rank.value;
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

TEST_CASE("levels of the feedback queue: quantum - 1, on, + 1; long prompts join lower; a level is so much time") {
  const FeedbackQueue queue = {.first_quantum = 4, .prompt_tokens_per_token = 8, .level_ms = 100};
  for (const auto& [num_output, level] : {std::pair{0, 0}, {3, 0}, {4, 1}, {15, 1}, {16, 2}, {63, 2}, {64, 3}, {9999, 6}, {16384, 7}, {20000, 7}})
    CHECK(rank(queue, 1, num_output, 0) == level * 100'000);
  for (const auto& [num_prompt, level] : {std::pair{7, 0}, {31, 0}, {32, 1}, {127, 1}, {128, 2}, {200'000, 7}})
    CHECK(rank(queue, num_prompt, 0, 0) == level * 100'000);
  CHECK(rank(queue, 32, 12, 0) == 200'000);
  CHECK(rank(queue, 32, 12, 5.25) == 205'250);
  CHECK(rank({.level_ms = 0}, 32, 12, 5.25) == 5'250);
}

TEST_CASE("a newcomer overtakes who waits on a lower level if it comes within the time between the levels, and not on it") {
  for (const double gap_ms : {0.0, 99.0, 100.0, 101.0}) {
    CAPTURE(gap_ms);
    Harness h(config_with(multi_level_feedback_queue({.first_quantum = 4, .prompt_tokens_per_token = 4, .level_ms = 100}), 1));
    h.add(2, 3);
    REQUIRE(h.step());
    const SeqId waiting = h.add(24, 4);
    const SeqId newcomer = h.add(2, 3, gap_ms);
    while (h.scheduler.contains(0)) REQUIRE(h.step(gap_ms));
    REQUIRE(h.step(gap_ms));
    CHECK(h.scheduler.running_ids() == std::vector<SeqId>{gap_ms < 100 ? newcomer : waiting});
  }
}

TEST_CASE("nobody starves: with a short newcomer at every step, the longest prompt runs once all levels' time has passed") {
  constexpr double kLevelMs = 10;
  Harness h(config_with(multi_level_feedback_queue({.first_quantum = 1, .prompt_tokens_per_token = 1, .level_ms = kLevelMs}), 1));
  h.add(1, 2);
  REQUIRE(h.step());
  const SeqId longest = h.add(60, 4);  // level 3: 1, 4, 16
  double now_ms = 0;
  for (; !h.scheduler.find(longest)->is_running; now_ms += 1) {
    REQUIRE(now_ms < 2 * kMaxLevels * kLevelMs);
    h.add(1, 1, now_ms);
    REQUIRE(h.step(now_ms));
  }
  CHECK(now_ms > kLevelMs);  // they did overtake it
  CHECK(now_ms <= 3 * kLevelMs + 2);
  for (; h.scheduler.contains(longest); now_ms += 1) {
    h.add(1, 1, now_ms);
    REQUIRE(h.step(now_ms));
    REQUIRE(now_ms < 4 * kMaxLevels * kLevelMs);
  }
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

TEST_CASE("in a crowd that comes over time each gives way once at most, every answer is right, and some do give way") {
  int32_t num_giving_way = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    TestRng rng(seed);
    Workload workload;
    workload.seed = seed;
    workload.model.vocab_size = 1000;
    workload.config = config_with(multi_level_feedback_queue({.first_quantum = 4, .prompt_tokens_per_token = 2, .level_ms = 20}), 4);
    double now_ms = 0;
    for (int i = 0; i < 60; ++i) {
      workload.requests.push_back(make_request(rng.log_between(1, 32), rng.log_between(1, 30)));
      workload.arrival_ms.push_back(now_ms += rng.between(0, 8));
    }
    const WorkloadOutcome outcome = run_workload(workload);
    REQUIRE_MESSAGE(outcome.error.empty(), outcome.error);
    for (const AnswerOutcome& answer : outcome.answers) {
      CHECK(answer.num_policy_preemptions <= 1);
      num_giving_way += answer.num_policy_preemptions;
    }
  }
  CHECK(num_giving_way >= 10);
}

}  // namespace llmb::test
