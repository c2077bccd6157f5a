// Drafts: where they stand in a plan, what they may take, and what becomes of them when tokens are seen.
#include <doctest/doctest.h>

#include <map>

#include "tests/scheduler/harness.h"

namespace llmb::test {

namespace {

// Proposes by sequence; says nothing where the test said nothing.
struct TestProposer final : Proposer {
  void propose(const Sequence& sequence, int32_t max_drafts, Drafts* out) override {
    most = max_drafts;
    ++num_calls;
    if (drafts.contains(sequence.id)) *out = drafts.at(sequence.id);
  }
  bool must_see(const Sequence& sequence) const override { return seen_first.contains(sequence.id); }

  std::map<SeqId, Drafts> drafts;
  std::map<SeqId, bool> seen_first;
  int32_t most = 0, num_calls = 0;
};

SchedulerConfig drafts_config() {
  SchedulerConfig config = small_config();
  config.max_num_drafts = 8;
  return config;
}

std::vector<TokenId> tokens_of(const StepPlan& plan) { return plan.tokens; }

}  // namespace

TEST_CASE("drafts stand behind the last token and are verified with it; what is given moves the sequence on") {
  TestProposer proposer;
  Harness h(drafts_config(), &proposer);
  h.add(5, 20);
  REQUIRE(h.step());
  CHECK(proposer.num_calls == 0);  // a sequence that joins has none
  proposer.drafts[0].tokens = {8, 9, 10};
  REQUIRE(h.schedule());
  CHECK(proposer.most == 8);
  CHECK(h.scheduler.num_free_blocks() == 61);  // 9 slots
  CHECK(tokens_of(h.plan) == std::vector<TokenId>{7, 8, 9, 10});
  CHECK(h.plan.entries[0].base == 5);
  REQUIRE(h.plan.num_groups() == 1);
  CHECK(h.plan.groups[0].mode == SampleMode::kVerify);
  CHECK(h.plan.num_samples() == 4);
  h.apply_given({{8, 9, 50}});
  REQUIRE(h.updates.size() == 3);
  CHECK(h.updates[2].token == 50);
  CHECK(h.updates[2].given == 2);
  CHECK(h.scheduler.num_free_blocks() == 61);  // 9 tokens are known
  proposer.drafts.clear();
  REQUIRE(h.schedule());
  CHECK(tokens_of(h.plan) == std::vector<TokenId>{50});
  CHECK(h.plan.entries[0].base == 8);
  CHECK(h.plan.groups[0].mode == SampleMode::kSample);
}

TEST_CASE("drafts never reach past max_tokens, max_num_drafts, or what running sequences leave of the budget") {
  TestProposer proposer;
  proposer.drafts[0].tokens = proposer.drafts[1].tokens = std::vector<TokenId>(20, 3);
  SUBCASE("one token more than the drafts may be given") {
    Harness h(drafts_config(), &proposer);
    h.add(5, 5);
    REQUIRE(h.step());
    REQUIRE(h.schedule());
    CHECK(h.shape() == "0:4");
    h.apply_given({{3, 3, 3, 4}});
    CHECK(h.updates.back().finish == FinishReason::kLength);
    CHECK(h.scheduler.num_free_blocks() == 64);
  }
  SUBCASE("the step's drafts") {
    Harness h(drafts_config(), &proposer);
    h.add(5, 50);
    h.add(5, 50);
    REQUIRE(h.step());
    REQUIRE(h.schedule());
    CHECK(h.shape() == "0:9 1:1");
  }
  SUBCASE("the budget") {
    SchedulerConfig config = drafts_config();
    config.max_num_batched_tokens = 6;
    Harness h(config, &proposer);
    h.add(3, 50);
    h.add(3, 50);
    REQUIRE(h.step());
    REQUIRE(h.schedule());
    CHECK(h.shape() == "0:5 1:1");
  }
}

TEST_CASE("drafts take only blocks that no running sequence needs, and preempt nobody") {
  TestProposer proposer;
  proposer.drafts[0].tokens = std::vector<TokenId>(8, 3);
  SchedulerConfig config = drafts_config();
  config.block_size = 1;
  config.num_blocks = 9;
  Harness h(config, &proposer);
  h.add(2, 5);
  h.add(2, 3);
  REQUIRE(h.step());
  REQUIRE(h.schedule());  // 3 + 3 of 9 blocks: 3 are spare
  CHECK(h.shape() == "0:4 1:1");
  CHECK(h.scheduler.num_free_blocks() == 0);
  h.apply();
  CHECK(h.scheduler.num_free_blocks() == 2);  // one of the drafts' slots is the next token's
  CHECK(h.scheduler.num_preemptions_total() == 0);
}

TEST_CASE("an ending token among those given ends the sequence there, the rest is dropped") {
  TestProposer proposer;
  Harness h(drafts_config(), &proposer);
  auto request = make_request(3, 20);
  request->params.stop.stop_token_ids = {9};
  h.add(request);
  REQUIRE(h.step());
  proposer.drafts[0].tokens = {8, 9, 10};
  REQUIRE(h.schedule());
  h.apply_given({{8, 9, 10, 11}});
  REQUIRE(h.updates.size() == 2);
  CHECK(h.updates[1].finish == FinishReason::kStop);
  CHECK(h.updates[1].stop_token == 9);
  CHECK_FALSE(h.scheduler.contains(0));
}

TEST_CASE("a row that is not finite behind accepted drafts: the tokens count, then the sequence ends") {
  TestProposer proposer;
  Harness h(drafts_config(), &proposer);
  h.add(3, 20);
  REQUIRE(h.step());
  proposer.drafts[0].tokens = {8, 9};
  REQUIRE(h.schedule());
  h.output.clear();
  give({8}, &h.output);
  h.output.is_finite[0] = 0;
  h.apply_output();
  REQUIRE(h.updates.size() == 2);
  CHECK(h.updates[0].token == 8);
  CHECK_FALSE(h.updates[0].numeric_error);
  CHECK(h.updates[1].numeric_error);
}

TEST_CASE("planned ahead, an entry goes on from as many tokens as will be given, with blocks for the most") {
  TestProposer proposer;
  Harness h(drafts_config(), &proposer);
  h.add(5, 30);
  REQUIRE(h.step());
  proposer.drafts[0].tokens = {8, 9, 10};
  REQUIRE(h.schedule());
  REQUIRE(h.schedule_ahead());
  const StepEntry& entry = h.ahead.entries.at(0);
  CHECK(tokens_of(h.ahead) == std::vector<TokenId>{unseen_token(0), 8, 9, 10});
  CHECK(entry.base == 5);
  CHECK(entry.follows == 0);
  CHECK(entry.max_ahead == 4);
  CHECK(h.ahead.max_context_len(0) == 13);
  CHECK(h.scheduler.num_free_blocks() == 60);
  h.apply_given({{50}});
  CHECK(h.scheduler.num_free_blocks() == 61);  // 7 tokens and at most 4
  h.apply_given({{8, 51}});
  proposer.drafts.clear();
  REQUIRE(h.schedule());
  CHECK(h.plan.entries[0].base == 8);
  CHECK(tokens_of(h.plan) == std::vector<TokenId>{51});
}

TEST_CASE("who must be seen first sits out the plan ahead, alone") {
  TestProposer proposer;
  proposer.seen_first[1] = true;
  Harness h(drafts_config(), &proposer);
  for (int i = 0; i < 3; ++i) h.add(2, 9);
  REQUIRE(h.schedule());
  REQUIRE(h.schedule_ahead());
  CHECK(h.ahead_shape() == "0:1 2:1");
  h.add(4, 9);
  h.apply();
  REQUIRE(h.schedule_ahead());  // what it waited for has been seen
  CHECK(h.ahead_shape() == "0:1 1:1 2:1 3:4");
  h.apply();
  REQUIRE(h.schedule_ahead());
  CHECK(h.ahead_shape() == "0:1 2:1 3:1");
}

TEST_CASE("behind drafts in flight sit out: penalties, min_tokens that are not reached, a possible end") {
  TestProposer proposer;
  for (SeqId seq = 0; seq < 4; ++seq) proposer.drafts[seq].tokens = {8, 9};
  Harness h(drafts_config(), &proposer);
  auto penalty = make_request(2, 30), min_tokens = make_request(2, 30);
  penalty->params.sampling.presence_penalty = 1;
  min_tokens->params.stop.stop_token_ids = {40};
  min_tokens->params.stop.min_tokens = 3;
  h.add(penalty);
  h.add(min_tokens);
  h.add(2, 4);  // with 2 drafts behind the first token it may end
  h.add(2, 30);
  REQUIRE(h.step());
  REQUIRE(h.schedule());
  CHECK(h.shape() == "0:3 1:3 2:3 3:3");
  CHECK(h.scheduler.num_running() == 4);
  REQUIRE(h.schedule_ahead());
  CHECK(h.ahead_shape() == "3:3");
  h.apply_given({{8, 9, 7}, {8, 9, 7}, {7}, {8, 9, 7}});
  CHECK(h.scheduler.contains(2));
  REQUIRE(h.schedule_ahead());
  CHECK(h.ahead_shape() == "0:3 1:3 2:2 3:3");
}

TEST_CASE("each drafted row has the penalties and the min_tokens of its place") {
  TestProposer proposer;
  proposer.drafts[0] = {{8, 7, 9}, {-1, 0, -1}};  // 8 7 and 9 behind the token 7
  SchedulerConfig config = drafts_config();
  config.allows_trees = true;
  Harness h(config, &proposer);
  auto request = make_request(2, 30);
  request->params.sampling.frequency_penalty = 1;
  request->params.stop.stop_token_ids = {40};
  request->params.stop.min_tokens = 3;
  h.add(request);
  REQUIRE(h.step());
  REQUIRE(h.schedule());
  std::vector<std::map<TokenId, int32_t>> counts;
  std::vector<int32_t> num_biases;
  for (const SampleRow& row : h.plan.sample_rows) {
    auto& count = counts.emplace_back();
    for (int32_t i = row.penalty_begin; i < row.penalty_end; ++i)
      CHECK(count.try_emplace(h.plan.penalty[i].token, h.plan.penalty[i].output_count).second);
    num_biases.push_back(row.bias_end - row.bias_begin);
  }
  CHECK(counts == decltype(counts){{{7, 1}}, {{7, 1}, {8, 1}}, {{7, 2}, {8, 1}}, {{7, 1}, {9, 1}}});
  CHECK(num_biases == std::vector<int32_t>{1, 1, 0, 1});  // outputs 1, 2, 3 and 2
}

TEST_CASE("a tree: accepted rows out of place are computed again, and nothing is planned behind it before") {
  TestProposer proposer;
  proposer.drafts[0] = {{8, 9, 18, 19}, {-1, 0, -1, 2}};  // 8 9 and 18 19
  SchedulerConfig config = drafts_config();
  config.allows_trees = true;
  Harness h(config, &proposer);
  h.add(5, 30);
  h.add(2, 30);
  REQUIRE(h.step());
  REQUIRE(h.schedule());
  CHECK(h.shape() == "0:5 1:1");
  CHECK(h.plan.parent_rows == std::vector<int32_t>{-1, 0, 1, 0, 3, 4});
  REQUIRE(h.schedule_ahead());
  CHECK(h.ahead_shape() == "1:1");
  h.apply_given({{18, 19, 50}, {7}});
  proposer.drafts.clear();
  REQUIRE(h.schedule_ahead());
  CHECK(h.ahead_shape() == "0:3 1:1");  // 18 and 19 stood behind 8 and 9
  CHECK(h.ahead.entries[0].base == 6);
  CHECK(h.ahead.tokens[2] == 50);
  h.apply_given({{7}});
  h.apply_given({{7}, {7}});
  proposer.drafts[0] = {{8, 9, 18}, {-1, 0, -1}};
  REQUIRE(h.schedule());
  h.apply_given({{8, 9, 51}, {7}});  // the first path is in place
  REQUIRE(h.schedule());
  CHECK(h.plan.entries[0].base == 12);
  CHECK(h.plan.tokens[0] == 51);
}

TEST_CASE("where trees are not allowed their first path is kept") {
  TestProposer proposer;
  proposer.drafts[0] = {{8, 9, 18, 19}, {-1, 0, -1, 2}};
  Harness h(drafts_config(), &proposer);
  h.add(5, 30);
  REQUIRE(h.step());
  REQUIRE(h.schedule());
  CHECK(tokens_of(h.plan) == std::vector<TokenId>{7, 8, 9});
  CHECK(h.plan.parent_rows.empty());
}

}  // namespace llmb::test
