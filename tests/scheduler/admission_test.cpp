// Who may run at all, and how much room a preempted sequence must find before it comes back.
#include "scheduler/admission.h"

#include <doctest/doctest.h>

#include "scheduler/answer_lengths.h"
#include "tests/scheduler/harness.h"
#include "tests/support/random_policy.h"

namespace llmb::test {

TEST_CASE("a prompt must leave room for one token: limit - 1, exactly on, + 1") {
  SchedulerConfig config = small_config();
  config.max_model_len = 16;
  config.num_blocks = 1000;
  CHECK_FALSE(never_fits(config, *make_request(14, 1)).has_value());
  CHECK_FALSE(never_fits(config, *make_request(15, 1)).has_value());
  const auto error = never_fits(config, *make_request(16, 1));
  REQUIRE(error.has_value());
  CHECK(error->code == "prompt_too_long");
  CHECK(error->message ==
        "the prompt has 16 tokens, the limit is 15 (a context of 16 tokens with room for one new token)");
  CHECK(never_fits(config, *make_request(17, 1))->code == "prompt_too_long");
  CHECK(max_new_tokens(config, *make_request(15, 5)) == 1);
  CHECK(max_new_tokens(config, *make_request(10, 5)) == 5);
  CHECK(max_new_tokens(config, *make_request(11, 6)) == 5);
}

TEST_CASE("answers that go on: the share of those as long that got so many tokens more, 1 where there was none") {
  AnswerLengths lengths(100);
  CHECK(lengths.share_going_on(0, 5) == 1);
  for (const int32_t length : {0, 1, 10, 20, 20, 100}) lengths.add(length);
  CHECK(lengths.share_going_on(0, 0) == 1);
  CHECK(lengths.share_going_on(0, 1) == 0.8);  // 10, 20, 20 and 100 of five
  CHECK(lengths.share_going_on(9, 1) == 0.75);
  CHECK(lengths.share_going_on(10, 9) == 1);
  CHECK(lengths.share_going_on(10, 10) == 1.0 / 3);
  CHECK(lengths.share_going_on(20, 79) == 1);
  CHECK(lengths.share_going_on(20, 80) == 0);
  CHECK(lengths.share_going_on(20, 10'000) == 0);
  CHECK(lengths.share_going_on(100, 1) == 1);
}

TEST_CASE("without max_tokens the context's end decides") {
  Request request = *make_request(10, 1);
  request.params.stop.max_tokens.reset();
  CHECK(max_new_tokens(small_config(), request) == 54);
}

TEST_CASE("a request that the pool can never hold is refused with both numbers: border - 1, on, + 1") {
  SchedulerConfig config = small_config();
  config.max_model_len = 4096;
  config.block_size = 16;
  config.num_blocks = 49;  // 784 slots; the last token needs none
  CHECK_FALSE(never_fits(config, *make_request(512, 272)).has_value());
  CHECK_FALSE(never_fits(config, *make_request(512, 273)).has_value());
  CHECK(never_fits(config, *make_request(512, 274))->code == "kv_too_small");
  const auto error = never_fits(config, *make_request(512, 496));
  REQUIRE(error.has_value());
  CHECK(error->message.find("needs 63 blocks, pool has 49") == 0);
  // max_tokens beyond the context does not count.
  config.max_model_len = 785;
  CHECK_FALSE(never_fits(config, *make_request(512, 100000)).has_value());
  config.max_model_len = 786;
  CHECK(never_fits(config, *make_request(512, 100000))->code == "kv_too_small");
}

TEST_CASE("add() refuses at once, takes no id, and what fits exactly runs to its end") {
  SchedulerConfig config = small_config();
  config.num_blocks = 3;  // 12 slots
  Scheduler scheduler(config);
  const auto refused = scheduler.add(make_request(4, 10), 0);  // 13 slots
  REQUIRE(std::holds_alternative<RequestError>(refused));
  CHECK_FALSE(scheduler.has_work());
  Harness h(config);
  CHECK(h.add(4, 9) == 0);
  int num_steps = 0;
  while (h.step()) ++num_steps;
  CHECK(num_steps == 9);
  CHECK_THROWS_AS(h.scheduler.add(std::make_shared<Request>(), 0), CheckFailure);
  CHECK_THROWS_AS(h.scheduler.add(make_request(1, 0), 0), CheckFailure);
}

TEST_CASE("the room asked for doubles with every preemption, then is all that can ever be needed") {
  CHECK(growth_blocks(0) == 1);
  CHECK(growth_blocks(1) == 2);
  CHECK(growth_blocks(kMaxPreemptions - 1) == int64_t{1} << (kMaxPreemptions - 1));
  CHECK(growth_blocks(kMaxPreemptions) > int64_t{1} << 30);
  CHECK(kMaxPreemptions <= 16);
}

TEST_CASE("wanted blocks: known tokens and growth, capped by the end, less what it has") {
  BlockAllocator allocator(64);
  const SchedulerConfig config = small_config();
  Sequence sequence(0, 0, make_request(10, 20), BlockTable(4), 20, 0);  // 3 blocks now, 29 tokens cached at the end: 8 blocks
  CHECK(num_blocks_wanted(config, sequence, 0) == 3);
  CHECK(num_blocks_wanted(config, sequence, 1) == 4);
  CHECK(num_blocks_wanted(config, sequence, 5) == 8);
  CHECK(num_blocks_wanted(config, sequence, 6) == 8);
  CHECK(num_blocks_wanted(config, sequence, growth_blocks(kMaxPreemptions)) == 8);
  REQUIRE(sequence.blocks.grow_to(8, &allocator));
  CHECK(num_blocks_wanted(config, sequence, 1) == 2);
  CHECK(num_blocks_wanted(config, sequence, 100) == 6);
  sequence.add_group_in_flight({0, 3, false});
  CHECK(num_blocks_wanted(config, sequence, 0) == 2);  // 13 tokens, if all three are given
  sequence.blocks.release_all(&allocator);
}

TEST_CASE("a request joins only where its whole prompt and a block of growth for everyone fit") {
  SchedulerConfig config = small_config();
  config.num_blocks = 8;
  for (const int32_t num_prompt_tokens : {15, 16, 17}) {
    Harness h(config);
    h.add(8, 9);                  // 2 blocks of at most 4, may grow by 1
    h.add(num_prompt_tokens, 5);  // 4 blocks and growth of 1; with 17 tokens 5 and growth of 1
    REQUIRE(h.step());
    CHECK(h.scheduler.num_running() == (num_prompt_tokens <= 16 ? 2 : 1));
  }
}

namespace {

// A crowd on one-token blocks that comes over time. Returns how often one was preempted at most, for memory.
int32_t most_preemptions_in_crowd(uint64_t seed, const Policy& policy, double mean_gap_ms) {
  TestRng rng(seed);
  Workload workload;
  workload.seed = seed;
  workload.model.vocab_size = 1000;
  workload.config = small_config();
  workload.config.max_num_seqs = 64;
  workload.config.block_size = 1;
  workload.config.num_blocks = workload.config.max_model_len = 1000;
  workload.config.policy = policy;
  double now_ms = 0;
  for (int i = 0; i < 60; ++i) {
    workload.requests.push_back(make_request(rng.log_between(1, 8), rng.log_between(1, 990)));
    workload.arrival_ms.push_back(now_ms);
    now_ms += mean_gap_ms * rng.between(0, 2);
  }
  const WorkloadOutcome outcome = run_workload(workload);
  REQUIRE_MESSAGE(outcome.error.empty(), outcome.error);
  int32_t most = 0;
  for (const AnswerOutcome& answer : outcome.answers)
    most = std::max(most, answer.num_preemptions - answer.num_policy_preemptions);
  return most;
}

}  // namespace

TEST_CASE("no request is preempted more than kMaxPreemptions times for memory by a crowd, whatever its order") {
  int32_t most_by_id = 0, most_by_rank = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) most_by_id = std::max(most_by_id, most_preemptions_in_crowd(seed, {}, 0));
  uint64_t seed = 0;
  for (const double gap_ms : {0.0, 30.0})
    for (const Policy& policy : {last_come_first_served(0), random_priorities(seed, 0), random_priorities(seed, 8),
                                 levels_by_output(20, 8), restless(seed, 50, 8)})
      most_by_rank = std::max(most_by_rank, most_preemptions_in_crowd(++seed, policy, gap_ms));
  CHECK(std::max(most_by_id, most_by_rank) <= kMaxPreemptions);
  CHECK(most_by_id >= 5);  // it does press
  CHECK(most_by_rank >= 5);
}

namespace {

SchedulerConfig crowded(Policy policy) {
  SchedulerConfig config = small_config();
  config.block_size = 1;
  config.num_blocks = config.max_model_len = config.max_num_batched_tokens = 200;
  config.policy = std::move(policy);
  return config;
}

// Newcomers of a better rank preempt the sequence, which runs alone, kMaxPreemptions times; then it runs again.
void settle(SeqId last, Harness* h) {
  for (int32_t i = 1; i <= kMaxPreemptions; ++i) {
    // Both may grow by one block, and no further.
    const SeqId newcomer = h->add(198 - h->scheduler.find(last)->num_known_tokens(), 9);
    REQUIRE(h->step());
    REQUIRE(h->scheduler.num_running() == 2);
    while (h->scheduler.contains(newcomer)) REQUIRE(h->step());
    CHECK(h->scheduler.num_preemptions(last) == i);
    while (!h->scheduler.find(last)->is_running) REQUIRE(h->step());
  }
}

}  // namespace

TEST_CASE("newcomers of a better rank preempt the last one kMaxPreemptions times; then they wait until it has ended") {
  Harness h(crowded(last_come_first_served(0)));
  const SeqId last = h.add(2, 150);
  REQUIRE(h.step());
  settle(last, &h);
  const SeqId fits = h.add(2, 9), too_large = h.add(190 - h.scheduler.find(last)->num_known_tokens(), 9);
  REQUIRE(h.step());
  CHECK_FALSE(h.scheduler.find(fits)->is_running);  // behind the other one
  CHECK_FALSE(h.scheduler.find(too_large)->is_running);
  h.scheduler.finish(too_large);
  REQUIRE(h.step());
  CHECK(h.scheduler.find(fits)->is_running);
  while (h.step()) {
  }
  CHECK(h.updates.at(0).seq == last);
  CHECK(h.updates[0].num_preemptions == kMaxPreemptions);
}

TEST_CASE("a settled sequence keeps its rank while it runs, so that whoever joined behind it stays there") {
  int64_t first_rank = 0, other_rank = 0;
  const auto rank = [&](const Sequence& s, double) { return Ranking{Rank{s.id == 0 ? first_rank : other_rank}}; };
  Harness h(crowded({rank, 2}));
  const SeqId last = h.add(2, 150);
  REQUIRE(h.step());
  other_rank = -1;
  settle(last, &h);
  other_rank = 1;
  const SeqId behind = h.add(190 - h.scheduler.find(last)->num_known_tokens(), 9);
  first_rank = 2;
  REQUIRE(h.step());
  CHECK(h.scheduler.running_ids() == std::vector<SeqId>{last, behind});
  while (h.scheduler.num_preemptions(behind) == 0) REQUIRE(h.step());
  CHECK(h.scheduler.num_preemptions(last) == kMaxPreemptions);
}

}  // namespace llmb::test
