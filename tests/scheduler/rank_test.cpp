// Policies: who goes first, who gives way, when a rank changes.
#include "scheduler/rank.h"

#include <doctest/doctest.h>

#include "tests/scheduler/harness.h"
#include "tests/support/random_policy.h"

namespace llmb::test {

namespace {

// By the number of prompt tokens: the shortest first.
Policy shortest_first(int32_t num_levels) {
  return {[](const Sequence& s, double) { return Ranking{Rank{s.num_prompt_tokens()}}; }, num_levels};
}

SchedulerConfig config_with(Policy policy, int32_t max_num_seqs = 2) {
  SchedulerConfig config = small_config();
  config.max_num_seqs = max_num_seqs;
  config.policy = std::move(policy);
  return config;
}

}  // namespace

TEST_CASE("a newcomer of a better rank takes a seat at once, as often as there are levels; without levels it waits") {
  for (const int32_t num_levels : {0, 1, 2}) {
    CAPTURE(num_levels);
    Harness h(config_with(shortest_first(num_levels), 1));
    h.add(6, 20);
    for (int32_t i = 0; i < num_levels; ++i) {
      REQUIRE(h.step());
      const SeqId newcomer = h.add(2, 2);
      REQUIRE(h.step());
      CHECK(h.shape() == std::to_string(newcomer) + ":2");
      CHECK(h.scheduler.num_preemptions(0) == i + 1);
      REQUIRE(h.step());
    }
    REQUIRE(h.step());
    h.add(2, 2);
    REQUIRE(h.step());
    CHECK(h.shape() == "0:1");
    CHECK(h.scheduler.num_preemptions(0) == num_levels);
  }
}

TEST_CASE("those who give way make room for the head of the line, the worst rank first, and no more than it needs") {
  SchedulerConfig config =
      config_with({[](const Sequence& s, double) { return Ranking{Rank{s.max_new_tokens}}; }, 1}, 8);
  config.block_size = 1;
  config.num_blocks = 20;
  Harness h(config);
  h.add(6, 9);
  h.add(5, 8);
  h.add(2, 4);
  REQUIRE(h.step());
  CHECK(h.shape() == "2:2 1:5 0:6");  // 7, 6 and 3 tokens are known, and everybody may grow by one
  SUBCASE("there is room") {
    h.add(1, 1);
    REQUIRE(h.step());
    CHECK(h.shape() == "2:1 1:1 0:1 3:1");
  }
  SUBCASE("one is enough") {
    h.add(8, 5);
    REQUIRE(h.step());
    CHECK(h.shape() == "2:1 1:1 3:8");
  }
  SUBCASE("it takes all that rank behind it") {
    h.add(14, 5);
    REQUIRE(h.step());
    CHECK(h.shape() == "2:1 3:14");
  }
  SUBCASE("all that rank behind it do not suffice") {
    h.add(16, 5);
    REQUIRE(h.step());
    CHECK(h.shape() == "2:1 1:1 0:1");
  }
  SUBCASE("those that rank before it give nothing") {
    h.add(1, 10);
    h.add(5, 9);
    REQUIRE(h.step());
    CHECK(h.shape() == "2:1 1:1 0:1");
  }
}

TEST_CASE("a demoted sequence goes behind the others, once it is not in flight; it sits out plans ahead for that") {
  Harness h(config_with(levels_by_output(2, 8), 8));
  h.add(2, 20);
  REQUIRE(h.step());
  h.add(2, 20);
  REQUIRE(h.schedule());
  CHECK(h.shape() == "0:1 1:2");
  REQUIRE(h.schedule_ahead());
  CHECK(h.ahead_shape() == "0:1 1:1");
  h.apply();  // the second token of 0
  CHECK(h.scheduler.find(0)->is_demotion_due);
  CHECK(h.scheduler.running_ids() == std::vector<SeqId>{0, 1});
  REQUIRE(h.schedule_ahead());
  CHECK(h.ahead_shape() == "1:1");
  h.apply();
  CHECK(h.scheduler.running_ids() == std::vector<SeqId>{1, 0});
  CHECK(h.scheduler.find(0)->num_demotions == 1);
  REQUIRE(h.schedule_ahead());
  CHECK(h.ahead_shape() == "0:1");  // now 1 is to be demoted
}

TEST_CASE("ranks change with time while a sequence waits; a promoted one keeps its rank and gives way to nobody") {
  const auto rank = [](const Sequence& s, double now_ms) {
    const double until_ms = s.arrival_ms + 100;
    return now_ms < until_ms ? Ranking{Rank{s.num_prompt_tokens()}, until_ms} : Ranking{Rank{-s.num_output_tokens()}};
  };
  Harness h(config_with({rank, 3}, 1));
  h.add(9, 30, 0);
  const SeqId first = h.add(2, 30, 1);
  REQUIRE(h.step(1));
  CHECK(h.shape() == std::to_string(first) + ":2");
  REQUIRE(h.step(99));
  CHECK(h.shape() == std::to_string(first) + ":1");
  REQUIRE(h.step(100));  // 0 has waited long enough
  CHECK(h.shape() == "0:9");
  CHECK(h.scheduler.find(0)->is_promoted);
  h.add(1, 3, 100);
  REQUIRE(h.step(300));  // the first one, and then the third, has waited as long, and has output
  CHECK(h.shape() == "0:1");
  CHECK(h.scheduler.num_preemptions(0) == 0);
  CHECK(h.scheduler.find(0)->rank == Rank{0});
}

TEST_CASE("a sequence is promoted once: what the policy says later does not count") {
  const auto rank = [](const Sequence& s, double now_ms) {
    if (s.id != 1) return Ranking{Rank{s.id}};  // 0 runs, 2 waits
    return now_ms < 100 ? Ranking{Rank{9}, 100} : now_ms < 200 ? Ranking{Rank{5}, 200} : Ranking{Rank{1}};
  };
  Harness h(config_with({rank, 8}, 1));
  h.add(2, 3);
  h.add(2, 3);
  h.add(2, 3);
  for (const double now_ms : {50.0, 150.0, 250.0}) REQUIRE(h.step(now_ms));
  CHECK(h.scheduler.find(1)->is_promoted);
  CHECK(h.scheduler.find(1)->rank == Rank{5});
  REQUIRE(h.step(250));
  CHECK(h.shape() == "2:2");
}

TEST_CASE("a promoted sequence keeps its rank when it is preempted for memory, too") {
  const auto rank = [](const Sequence& s, double now_ms) {
    return Ranking{Rank{s.id > 0 ? 0 : now_ms < 100 ? 9 : now_ms < 200 ? 5 : 1}};
  };
  SchedulerConfig config = config_with({rank, 8});
  config.block_size = 1;
  config.num_blocks = config.max_model_len = config.max_num_batched_tokens = 200;
  Harness h(config);
  h.add(2, 150);
  REQUIRE(h.step());
  for (const double now_ms : {150.0, 250.0}) {
    const SeqId newcomer = h.add(198 - h.scheduler.find(0)->num_known_tokens(), 9, now_ms);
    while (h.scheduler.contains(newcomer)) REQUIRE(h.step(now_ms));
    while (!h.scheduler.find(0)->is_running) REQUIRE(h.step(now_ms));
  }
  CHECK(h.scheduler.find(0)->num_memory_preemptions == 2);
  CHECK(h.scheduler.find(0)->is_promoted);
  CHECK(h.scheduler.find(0)->rank == Rank{5});
}

TEST_CASE("a rank changes at most as often as there are levels") {
  for (const int32_t num_levels : {0, 1, 2, 8}) {
    CAPTURE(num_levels);
    Harness h(config_with(levels_by_output(1, num_levels), 2));
    h.add(2, 20);
    int32_t num_demotions = 0;
    while (h.step())
      if (const Sequence* sequence = h.scheduler.find(0)) num_demotions = sequence->num_demotions;
    CHECK(num_demotions == std::max(num_levels - 1, 0));
  }
}

TEST_CASE("a rank that does not hold, levels beyond the limit and no function throw") {
  Harness h(config_with({[](const Sequence&, double now_ms) { return Ranking{Rank{}, now_ms}; }, 1}));
  CHECK_THROWS_AS(h.scheduler.add(make_request(1, 1), 0), CheckFailure);
  CHECK_THROWS_AS(Scheduler{config_with(shortest_first(kMaxLevels + 1))}, CheckFailure);
  CHECK_THROWS_AS(Scheduler{config_with(shortest_first(-1))}, CheckFailure);
  CHECK_THROWS_AS(Scheduler{config_with({nullptr, 0})}, CheckFailure);
}

}  // namespace llmb::test
