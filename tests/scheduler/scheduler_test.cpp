// The contents of a step: order, chunks, budgets, preemption, the end of sequences.
#include "scheduler/scheduler.h"

#include <doctest/doctest.h>

#include "tests/scheduler/harness.h"

namespace llmb::test {

TEST_CASE("an empty scheduler has nothing to run") {
  Harness h(small_config());
  CHECK_FALSE(h.schedule());
  CHECK_FALSE(h.scheduler.has_work());
  CHECK_FALSE(h.scheduler.next_wakeup_ms().has_value());
}

TEST_CASE("one request: its prompt in one step, then a token a step, then its blocks are free") {
  Harness h(small_config());
  const SeqId seq = h.add(5, 3);
  REQUIRE(h.schedule());
  CHECK(h.shape() == "0:5");
  CHECK(h.plan.tokens == std::vector<TokenId>{1, 2, 3, 4, 5});
  CHECK(h.plan.entries[0].base == 0);
  CHECK(h.plan.block_ids == std::vector<BlockId>{0, 1});
  CHECK(h.plan.groups.size() == 1);
  CHECK(h.plan.sample_rows.size() == 1);
  CHECK(h.plan.sample_rows[0].token_row == 4);
  h.apply(21);
  REQUIRE(h.updates.size() == 1);
  CHECK(h.updates[0].seq == seq);
  CHECK(h.updates[0].token == 21);
  CHECK_FALSE(h.updates[0].finish.has_value());

  REQUIRE(h.schedule());
  CHECK(h.plan.tokens == std::vector<TokenId>{21});
  CHECK(h.plan.entries[0].base == 5);
  CHECK(h.plan.entries[0].follows == kNoGroup);
  CHECK(h.plan.max_context_len(0) == 6);
  CHECK(h.plan.step == 1);
  h.apply(22);
  CHECK(h.scheduler.num_free_blocks() == 62);
  REQUIRE(h.schedule());
  h.apply(23);
  CHECK(h.updates[0].finish == FinishReason::kLength);
  CHECK_FALSE(h.updates[0].stop_token.has_value());
  CHECK(h.scheduler.num_free_blocks() == 64);
  CHECK_FALSE(h.scheduler.contains(seq));
  CHECK_FALSE(h.step());
}

TEST_CASE("the context's end ends a sequence that asked for more") {
  SchedulerConfig config = small_config();
  config.max_model_len = 10;
  Harness h(config);
  h.add(7, 100);
  int num_tokens = 0;
  while (h.step()) ++num_tokens;
  CHECK(num_tokens == 3);
  CHECK(h.updates[0].finish == FinishReason::kLength);
}

TEST_CASE("a long prompt is computed in chunks of the budget and samples once, at its end") {
  SchedulerConfig config = small_config();
  config.max_num_batched_tokens = 8;
  for (const int32_t num_prompt_tokens : {7, 8, 9, 16, 17, 24}) {
    CAPTURE(num_prompt_tokens);
    Harness h(config);
    h.add(num_prompt_tokens, 2);
    for (int32_t done = 0; done < num_prompt_tokens; done += 8) {
      REQUIRE(h.schedule());
      CHECK(h.plan.num_tokens() == std::min(8, num_prompt_tokens - done));
      CHECK(h.plan.num_samples() == (done + 8 >= num_prompt_tokens ? 1 : 0));
      h.apply();
    }
    REQUIRE(h.step());
    CHECK(h.updates[0].finish == FinishReason::kLength);
  }
}

TEST_CASE("max_num_seqs and the token budget are never exceeded, whatever is smaller") {
  for (const int32_t budget : {1, 3, 4, 5}) {
    SchedulerConfig config = small_config();
    config.max_num_seqs = 4;
    config.max_num_batched_tokens = budget;
    Harness h(config);
    for (int i = 0; i < 9; ++i) h.add(1, 4);
    int64_t num_sampled = 0;
    while (h.step()) {
      CHECK(h.plan.num_tokens() <= budget);
      CHECK(h.plan.num_entries() <= std::min(4, budget));
      num_sampled += h.plan.num_samples();
    }
    CHECK(num_sampled == 36);
  }
}

TEST_CASE("a request that takes the whole pool runs, alone") {
  SchedulerConfig config = small_config();
  config.num_blocks = 4;
  Harness h(config);
  h.add(8, 9);  // 16 slots: all four blocks
  h.add(8, 9);
  while (h.scheduler.contains(0)) REQUIRE(h.step());
  CHECK(h.scheduler.num_preemptions_total() <= 1);
  while (h.step()) {
  }
  CHECK(h.scheduler.num_free_blocks() == 4);
}

TEST_CASE("finish() frees running, waiting and in-flight sequences, once") {
  SchedulerConfig config = small_config();
  config.max_num_seqs = 2;
  Harness h(config);
  for (int i = 0; i < 4; ++i) h.add(4, 8);
  REQUIRE(h.step());
  h.scheduler.finish(3);  // waiting
  h.check();
  REQUIRE(h.schedule());
  h.scheduler.finish(0);  // in flight
  h.check();
  h.apply();
  REQUIRE(h.updates.size() == 1);  // the output of 0 is dropped
  CHECK(h.updates[0].seq == 1);
  CHECK(h.updates[0].given == 1);
  h.scheduler.finish(1);  // running
  h.check();
  CHECK_THROWS_AS(h.scheduler.finish(1), CheckFailure);
  REQUIRE(h.step());
  CHECK(h.shape() == "2:4");
  h.scheduler.finish(2);
  CHECK(h.scheduler.num_free_blocks() == 64);
  CHECK_FALSE(h.scheduler.has_work());
}

TEST_CASE("two plans may be in flight, the older is applied first, and each once") {
  Harness h(small_config());
  h.add(4, 8);
  REQUIRE(h.schedule());
  REQUIRE(h.schedule_ahead());
  StepPlan other;
  CHECK_THROWS_AS(h.scheduler.schedule(0, false, &other), CheckFailure);
  h.output.clear();
  give(7, &h.output);
  CHECK_THROWS_AS(h.scheduler.apply(h.ahead, h.output, &h.updates), CheckFailure);
  StepPlan stale = h.plan;
  h.apply();
  CHECK_THROWS_AS(h.scheduler.apply(stale, h.output, &h.updates), CheckFailure);
  h.apply();
  CHECK_THROWS_AS(h.scheduler.apply(h.plan, h.output, &h.updates), CheckFailure);
  REQUIRE(h.schedule());
  h.output.clear();
  CHECK_THROWS_AS(h.scheduler.apply(h.plan, h.output, &h.updates), CheckFailure);  // nothing of the group
}

TEST_CASE("settings that cannot work throw") {
  const auto broken = [](auto change) {
    SchedulerConfig config = small_config();
    change(&config);
    CHECK_THROWS_AS(Scheduler{config}, CheckFailure);
  };
  broken([](SchedulerConfig* c) { c->max_num_seqs = 0; });
  broken([](SchedulerConfig* c) { c->max_num_batched_tokens = 0; });
  broken([](SchedulerConfig* c) { c->block_size = 0; });
  broken([](SchedulerConfig* c) { c->num_blocks = 0; });
  broken([](SchedulerConfig* c) { c->max_model_len = 0; });
  broken([](SchedulerConfig* c) { c->batch_window_ms = -1; });
  broken([](SchedulerConfig* c) {
    c->num_blocks = 1 << 28;  // slots would not fit int32
    c->block_size = 8;
  });
}

TEST_CASE("KV usage counts tokens in the cache and slots in allocated blocks") {
  Harness h(small_config());
  h.add(5, 8);
  h.add(8, 8);
  REQUIRE(h.step());
  KvUsage usage = h.scheduler.kv_usage();
  CHECK(usage.used_slots == 13);
  CHECK(usage.allocated_slots == 16);
  CHECK(usage.total_slots == 256);
  REQUIRE(h.step());
  usage = h.scheduler.kv_usage();
  CHECK(usage.used_slots == 15);
  CHECK(usage.allocated_slots == 20);
}

TEST_CASE("KV usage counts a block that choices share once") {
  for (const int32_t num_choices : {2, 3, 7}) {
    CAPTURE(num_choices);
    Harness h(small_config());
    auto request = make_request(5, 8);
    request->params.sampling.num_choices = num_choices;
    h.add(request);
    REQUIRE(h.step());
    CHECK(h.scheduler.kv_usage().used_slots == 5);
    CHECK(h.scheduler.kv_usage().allocated_slots == 8);
    REQUIRE(h.step());  // each has a last block of its own
    CHECK(h.scheduler.kv_usage().used_slots == 4 + 2 * num_choices);
    CHECK(h.scheduler.kv_usage().allocated_slots == 4 + 4 * num_choices);
  }
}

}  // namespace llmb::test
