// A step fills in the places of rows from what the plan before gave, and the tokens given from what was drawn.
#include "core/resolve_step.h"

#include <doctest/doctest.h>

#include <vector>

namespace llmb {

namespace {

// Block size 4, two layer groups. Sequence 0: two tokens at 3. Sequence 1 follows group 1 behind position 5, with a
// draft. Each is sampled.
StepPlan make_plan() {
  StepPlan plan;
  plan.clear();
  plan.block_size = 4;
  plan.num_layer_groups = 2;
  plan.tokens = {11, 12, unseen_token(1), 14};
  plan.entries.resize(2);
  plan.entries[0].base = 3;
  plan.entries[1].seq = 1;
  plan.entries[1].base = 5;
  plan.entries[1].follows = 1;
  plan.entries[1].max_ahead = 4;
  plan.query_start = {0, 2, 4};
  plan.block_start = {0, 2, 4, 7, 10};
  plan.block_ids = {5, 2, 0, 1, 9, 8, 7, 3, 4, 6};
  plan.groups = {{0, 0, 0, 1, SampleMode::kSample}, {1, 1, 1, 3, SampleMode::kVerify}};
  plan.sample_rows.resize(3);
  for (const int32_t i : {0, 1, 2}) {
    plan.sample_rows[i].token_row = 1 + i;
    plan.sample_rows[i].group = i == 0 ? 0 : 1;
  }
  return plan;
}

std::vector<uint32_t> positions_of(const std::vector<SampleRow>& rows) {
  std::vector<uint32_t> positions;
  for (const SampleRow& row : rows) positions.push_back(row.position);
  return positions;
}

}  // namespace

TEST_CASE("positions, slots of each layer group and contexts go on from what the followed group gave") {
  const StepPlan plan = make_plan();
  ResolvedStep step;
  resolve_step(plan, {{1, 2}, {70, 71}}, &step);
  CHECK(step.tokens == std::vector<TokenId>{11, 12, 71, 14});
  CHECK(step.positions == std::vector<int32_t>{3, 4, 7, 8});
  CHECK(step.slots == std::vector<int32_t>{23, 8, 35, 28, 3, 4, 19, 24});
  CHECK(step.context_len == std::vector<int32_t>{5, 9});
  CHECK(positions_of(step.sample_rows) == std::vector<uint32_t>{5, 8, 9});
  CHECK(plan.tokens[2] == unseen_token(1));  // the plan stays as it is
  resolve_step(plan, {{1, 4}, {70, 72}}, &step);
  CHECK(step.positions == std::vector<int32_t>{3, 4, 9, 10});
  CHECK(step.context_len == std::vector<int32_t>{5, 11});
}

TEST_CASE("behind a group that gave nothing, a row is where it would be behind one token") {
  ResolvedStep step;
  resolve_step(make_plan(), {{1, 0}, {70, 0}}, &step);
  CHECK(step.tokens[2] == 0);
  CHECK(step.positions[2] == 6);
}

TEST_CASE("rows of a tree have the position of their depth and slots one behind the other") {
  StepPlan plan = make_plan();
  plan.num_layer_groups = 1;
  plan.block_start = {0, 2, 5};
  plan.block_ids = {5, 2, 9, 8, 7};
  plan.tokens = {11, 12, 13, 14, 15, 16};
  plan.query_start = {0, 2, 6};
  plan.parent_rows = {-1, 0, 1, 2, 2, 3};
  plan.entries[1].follows = kNoGroup;
  plan.groups.clear();
  plan.sample_rows.clear();
  ResolvedStep step;
  resolve_step(plan, {}, &step);
  CHECK(step.positions == std::vector<int32_t>{3, 4, 5, 6, 6, 7});
  CHECK(step.slots == std::vector<int32_t>{23, 8, 33, 34, 35, 28});
  CHECK(step.context_len == std::vector<int32_t>{5, 9});
}

TEST_CASE("unseen tokens join the count of the same token, or stand by themselves") {
  const auto row = [](int32_t begin, int32_t end) {
    SampleRow r;
    r.penalty_begin = begin, r.penalty_end = end;
    return r;
  };
  std::vector<SampleRow> rows = {row(0, 3), row(3, 3), row(3, 4), row(4, 6), row(6, 8)};
  std::vector<TokenPenalty> penalty = {{7, 2},
                                       {50, 0},
                                       {unseen_token(1), 1},  // joins 50
                                       {unseen_token(0), 1},  // alone
                                       {7, 3},
                                       {unseen_token(0), 1},  // a new one
                                       {7, 1},
                                       {8, 1}};  // none unseen
  CHECK(counts_unseen_token(rows[0], penalty));
  CHECK_FALSE(counts_unseen_token(rows[1], penalty));
  CHECK_FALSE(counts_unseen_token(rows[4], penalty));
  count_unseen_tokens(std::vector<TokenId>{60, 50}, &rows, &penalty);
  std::vector<std::vector<std::pair<TokenId, int32_t>>> slices;
  for (const SampleRow& r : rows) {
    auto& slice = slices.emplace_back();
    for (int32_t i = r.penalty_begin; i < r.penalty_end; ++i)
      slice.emplace_back(penalty[i].token, penalty[i].output_count);
  }
  CHECK(slices == decltype(slices){{{7, 2}, {50, 1}}, {}, {{60, 1}}, {{7, 3}, {60, 1}}, {{7, 1}, {8, 1}}});
}

namespace {

// One token each, the k best of row i: k = i.
SampledRows sampled_rows(const std::vector<TokenId>& tokens) {
  SampledRows sampled;
  sampled.clear();
  for (size_t i = 0; i < tokens.size(); ++i) {
    sampled.tokens.push_back(tokens[i]);
    sampled.logprobs.push_back(-static_cast<float>(i));
    sampled.is_finite.push_back(1);
    for (size_t k = 0; k < i; ++k) {
      sampled.top_tokens.push_back(static_cast<TokenId>(10 * i + k));
      sampled.top_logprobs.push_back(-0.5f * static_cast<float>(k));
    }
    sampled.top_start.push_back(static_cast<int32_t>(sampled.top_tokens.size()));
  }
  return sampled;
}

// A group of one row, then one that verifies the drafts 1, 2, 3 behind the token 9, then one of the best two.
StepPlan plan_to_give() {
  StepPlan plan;
  plan.clear();
  plan.tokens = {8, 9, 1, 2, 3, 7};
  plan.groups = {{0, 0, 0, 1, SampleMode::kSample}, {1, 1, 1, 5, SampleMode::kVerify}, {2, 2, 5, 6, SampleMode::kBest}};
  plan.sample_rows.resize(6);
  for (int32_t i = 0; i < 6; ++i) plan.sample_rows[i].token_row = i;
  return plan;
}

}  // namespace

TEST_CASE("a verified group gives what was drawn as long as the drafts are that, and one token more") {
  const StepPlan plan = plan_to_give();
  StepOutput out;
  GivenTokens given;
  give_tokens(plan, plan.tokens, sampled_rows({40, 1, 2, 43, 44, 45}), &out, &given);
  CHECK(out.token_start == std::vector<int32_t>{0, 1, 4, 9});
  CHECK(out.tokens == std::vector<TokenId>{40, 1, 2, 43, 50, 51, 52, 53, 54});
  CHECK(out.logprobs == std::vector<float>{0, -1, -2, -3, 0, -0.5f, -1, -1.5f, -2});
  CHECK(out.top_start == std::vector<int32_t>{0, 0, 1, 3, 6, 6, 6, 6, 6, 6});
  CHECK(out.top_tokens == std::vector<TokenId>{10, 20, 21, 30, 31, 32});
  CHECK(out.is_finite == std::vector<uint8_t>{1, 1, 1});
  CHECK(given.counts == std::vector<int32_t>{1, 3, 5});
  CHECK(given.last[0] == 40);
  CHECK(given.last[1] == 43);
  const auto num_given = [&](const std::vector<TokenId>& drawn) {
    give_tokens(plan, plan.tokens, sampled_rows(drawn), &out, &given);
    return given.counts[1];
  };
  CHECK(num_given({40, 41, 2, 3, 44, 45}) == 1);
  CHECK(num_given({40, 1, 42, 3, 44, 45}) == 2);
  CHECK(num_given({40, 1, 2, 3, 44, 45}) == 4);
}

TEST_CASE("a row that is not finite gives nothing and ends its group, drawn tokens before it stay") {
  const StepPlan plan = plan_to_give();
  StepOutput out;
  GivenTokens given;
  SampledRows sampled = sampled_rows({40, 1, 2, 3, 44, 45});
  sampled.is_finite = {0, 1, 1, 0, 1, 0};
  give_tokens(plan, plan.tokens, sampled, &out, &given);
  CHECK(out.token_start == std::vector<int32_t>{0, 0, 2, 2});
  CHECK(out.tokens == std::vector<TokenId>{1, 2});
  CHECK(out.is_finite == std::vector<uint8_t>{0, 0, 0});
  CHECK(given.last == std::vector<TokenId>{0, 2, 0});
  sampled.is_finite = {1, 1, 1, 1, 1, 1};
  sampled.tokens[2] = 42;
  sampled.is_finite[3] = 0;  // behind a draft that was not accepted
  give_tokens(plan, plan.tokens, sampled, &out, &given);
  CHECK(out.is_finite == std::vector<uint8_t>{1, 1, 1});
}

TEST_CASE("in a tree the walk goes on at the child that holds the drawn token, the first of equal ones") {
  StepPlan plan = plan_to_give();
  plan.groups = {{1, 0, 0, 6, SampleMode::kVerify}};
  plan.tokens = {9, 1, 2, 1, 2, 5};
  plan.parent_rows = {-1, 0, 0, 0, 1, 2};
  StepOutput out;
  GivenTokens given;
  give_tokens(plan, plan.tokens, sampled_rows({1, 2, 5, 80, 81, 82}), &out, &given);
  CHECK(out.tokens == std::vector<TokenId>{1, 2, 81});  // rows 0, 1, 4
  give_tokens(plan, plan.tokens, sampled_rows({2, 2, 5, 80, 81, 82}), &out, &given);
  CHECK(out.tokens == std::vector<TokenId>{2, 5, 82});  // rows 0, 2, 5
  give_tokens(plan, plan.tokens, sampled_rows({7, 2, 5, 80, 81, 82}), &out, &given);
  CHECK(out.tokens == std::vector<TokenId>{7});
}

}  // namespace llmb
