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

TEST_CASE("drafts stand behind a prompt's last row, unless other choices may join for it and hold its last block, too") {
  for (const int32_t num_choices : {1, 2}) {
    CAPTURE(num_choices);
    SchedulerConfig config = drafts_config();
    config.max_num_batched_tokens = 5;
    TestProposer proposer;
    proposer.drafts[0] = {{11, 12}, {}};
    Harness h(config, &proposer);
    auto request = make_request(6, 9);
    request->params.sampling.num_choices = num_choices;
    h.add(request);
    REQUIRE(h.schedule());
    CHECK(h.shape() == "0:5");
    h.apply();
    REQUIRE(h.schedule());
    CHECK(h.shape() == (num_choices == 1 ? "0:3" : "0:1"));
    CHECK(h.plan.num_groups() == num_choices);
    h.apply();
    REQUIRE(h.schedule());
    CHECK(h.shape() == (num_choices == 1 ? "0:3" : "0:3 1:1"));
  }
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

TEST_CASE("drafts whose parents do not lie before them are refused: nobody follows them for ever") {
  for (const Drafts& wrong : {Drafts{{8}, {0}}, Drafts{{8, 9}, {1, 0}}, Drafts{{8, 9}, {-1}}, Drafts{{8}, {-2}}}) {
    TestProposer proposer;
    proposer.drafts[0] = wrong;
    SchedulerConfig config = drafts_config();
    config.allows_trees = true;
    Harness h(config, &proposer);
    h.add(3, 20);
    REQUIRE(h.step());
    StepPlan plan;
    CHECK_THROWS(h.scheduler.schedule(0, false, &plan));
  }
}

}  // namespace llmb::test
