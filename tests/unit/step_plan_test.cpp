// validate_step_plan: a good plan passes, and each way to break an invariant is found and named.
#include "core/step_plan.h"

#include <doctest/doctest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace llmb {

namespace {

constexpr int32_t kNumBlocks = 8;

// Block size 4. Sequence 10: 2 new tokens after 3, samples. 11: one token after 7, samples. 12: the first 5, no sample.
StepPlan good_plan() {
  StepPlan plan;
  plan.clear();
  plan.block_size = 4;
  plan.tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  plan.positions = {3, 4, 7, 0, 1, 2, 3, 4};
  plan.slots = {11, 4, 31, 0, 1, 2, 3, 20};
  plan.seq_ids = {10, 11, 12};
  plan.query_start = {0, 2, 3, 8};
  plan.context_len = {5, 8, 5};
  plan.block_start = {0, 2, 4, 6};
  plan.block_ids = {2, 1, 6, 7, 0, 5};
  plan.bias = {{3, -1.0f}, {4, 1.0f}};
  plan.penalty = {{1, 0}};
  SampleRow first, second;
  first.seq = 0;
  first.token_row = 1;
  first.bias_end = 2;
  second.seq = 1;
  second.token_row = 2;
  second.penalty_end = 1;
  plan.sample_rows = {first, second};
  return plan;
}

struct Breakage {
  const char* what;
  int invariant;
  std::function<void(StepPlan*)> apply;
};

const std::vector<Breakage>& breakages() {
  static const std::vector<Breakage> all = {
      {"query_start too short", 1, [](StepPlan* p) { p->query_start.pop_back(); }},
      {"query_start empty", 1, [](StepPlan* p) { p->query_start.clear(); }},
      {"query_start does not begin with 0", 1, [](StepPlan* p) { p->query_start[0] = 1; }},
      {"query_start does not end with the tokens", 1, [](StepPlan* p) { p->query_start[3] = 7; }},
      {"query_start decreases", 1, [](StepPlan* p) { p->query_start[1] = 4; }},
      {"a sequence without tokens", 1, [](StepPlan* p) { p->query_start[2] = 2; }},
      {"block_start too short", 1, [](StepPlan* p) { p->block_start.pop_back(); }},
      {"block_start decreases", 1, [](StepPlan* p) { p->block_start[1] = 5; }},
      {"block_start does not end with the blocks", 1, [](StepPlan* p) { p->block_ids.push_back(3); }},
      {"a position too few", 1, [](StepPlan* p) { p->positions.pop_back(); }},
      {"a slot too few", 1, [](StepPlan* p) { p->slots.pop_back(); }},
      {"a context_len too few", 1, [](StepPlan* p) { p->context_len.pop_back(); }},
      {"a gap in the positions", 2, [](StepPlan* p) { p->positions[5] = 3; }},
      {"positions that do not end at context_len - 1", 2, [](StepPlan* p) { p->context_len[0] = 6; }},
      {"context_len below the new tokens", 2, [](StepPlan* p) { p->context_len[2] = 4; }},
      {"negative context_len", 2, [](StepPlan* p) { p->context_len[2] = -5; }},
      {"too few blocks", 3,
       [](StepPlan* p) {
         p->block_start = {0, 1, 4, 6};
       }},
      {"a block beyond the pool", 3, [](StepPlan* p) { p->block_ids[3] = kNumBlocks; }},
      {"a negative block", 3, [](StepPlan* p) { p->block_ids[3] = -1; }},
      {"a slot in another block", 3, [](StepPlan* p) { p->slots[0] = 15; }},
      {"a slot at another offset", 3, [](StepPlan* p) { p->slots[0] = 10; }},
      {"block_size 0", 3, [](StepPlan* p) { p->block_size = 0; }},
      {"a slot written by two sequences", 4,
       [](StepPlan* p) {
         p->block_ids[5] = 1;  // sequence 12 shares block 1 with sequence 10, and both write its first slot
         p->slots[7] = 4;
       }},
      {"samples out of order", 5, [](StepPlan* p) { std::swap(p->sample_rows[0], p->sample_rows[1]); }},
      {"two samples of a sequence", 5, [](StepPlan* p) { p->sample_rows[1] = p->sample_rows[0]; }},
      {"a sample that is not the last row", 5, [](StepPlan* p) { p->sample_rows[0].token_row = 0; }},
      {"a sample of an unknown sequence", 5, [](StepPlan* p) { p->sample_rows[1].seq = 3; }},
      {"a sample of a negative sequence", 5, [](StepPlan* p) { p->sample_rows[0].seq = -1; }},
      {"bias past the end", 5, [](StepPlan* p) { p->sample_rows[0].bias_end = 3; }},
      {"bias before the start", 5, [](StepPlan* p) { p->sample_rows[0].bias_begin = -1; }},
      {"bias backwards", 5, [](StepPlan* p) { p->sample_rows[1].bias_begin = 1; }},
      {"penalty past the end", 5, [](StepPlan* p) { p->sample_rows[1].penalty_end = 2; }},
      {"penalty before the start", 5, [](StepPlan* p) { p->sample_rows[1].penalty_begin = -1; }},
      {"an unseen token with nothing in flight", 6, [](StepPlan* p) { p->tokens[2] = unseen_token(0); }},
      {"the lowest token", 6, [](StepPlan* p) { p->tokens[0] = std::numeric_limits<TokenId>::min(); }},
      {"penalty backwards", 5, [](StepPlan* p) { p->sample_rows[0].penalty_begin = 1; }},
  };
  return all;
}

}  // namespace

TEST_CASE("a valid plan and an empty plan pass") {
  const Status status = validate_step_plan(good_plan(), kNumBlocks);
  CHECK_MESSAGE(status.ok(), status.message());
  StepPlan empty;
  empty.clear();
  CHECK(validate_step_plan(empty, kNumBlocks).ok());
  CHECK(validate_step_plan(empty, 0).ok());
}

TEST_CASE("each broken invariant is found and named") {
  for (const Breakage& breakage : breakages()) {
    StepPlan plan = good_plan();
    breakage.apply(&plan);
    const Status status = validate_step_plan(plan, kNumBlocks);
    const std::string number = "invariant " + std::to_string(breakage.invariant);
    CHECK_MESSAGE(status.message().find(number) != std::string::npos, std::string(breakage.what)
                                                                          << ": '" << status.message() << "'");
  }
}

TEST_CASE("unseen tokens: only those that the plan before samples, filled in from what it gave") {
  StepPlan plan = good_plan();
  plan.tokens[2] = unseen_token(0);
  plan.tokens[7] = unseen_token(2);
  CHECK(validate_step_plan(plan, kNumBlocks, 3).ok());
  CHECK_FALSE(validate_step_plan(plan, kNumBlocks, 2).ok());
  plan.tokens[0] = std::numeric_limits<TokenId>::min();
  CHECK_FALSE(validate_step_plan(plan, kNumBlocks, std::numeric_limits<int32_t>::max()).ok());
  plan.tokens[0] = 1;
  std::vector<TokenId> tokens = {77};
  resolve_tokens(plan, std::vector<TokenId>{50, 51, 52}, &tokens);
  CHECK(tokens == std::vector<TokenId>{1, 2, 50, 4, 5, 6, 7, 52});
  CHECK(plan.tokens[2] == unseen_token(0));  // the plan stays as it is
  resolve_tokens(good_plan(), {}, &tokens);
  CHECK(tokens == good_plan().tokens);
}

TEST_CASE("penalties of unseen tokens: the last entry of a slice, added to the count of the same token or by itself") {
  StepPlan plan = good_plan();
  const auto row = [](int32_t begin, int32_t end) {
    SampleRow r;
    r.penalty_begin = begin, r.penalty_end = end;
    return r;
  };
  plan.sample_rows[0].penalty_begin = 0, plan.sample_rows[0].penalty_end = 3;
  plan.sample_rows[1].penalty_begin = plan.sample_rows[1].penalty_end = 3;
  plan.penalty = {{7, 2}, {50, 0}, {unseen_token(1), 1}};
  CHECK(validate_step_plan(plan, kNumBlocks, 2).ok());
  CHECK(validate_step_plan(plan, kNumBlocks, 1).message().find("invariant 7") != std::string::npos);
  std::swap(plan.penalty[1], plan.penalty[2]);
  CHECK(validate_step_plan(plan, kNumBlocks, 2).message().find("invariant 7") != std::string::npos);

  std::vector<SampleRow> rows = {row(0, 3), row(3, 3), row(3, 4), row(4, 6), row(6, 8)};
  std::vector<TokenPenalty> penalty = {{7, 2},
                                       {50, 0},
                                       {unseen_token(1), 1},  // joins 50
                                       {unseen_token(0), 1},  // alone
                                       {7, 3},
                                       {unseen_token(0), 1},  // a new one
                                       {7, 1},
                                       {8, 1}};  // none unseen
  count_unseen_tokens(std::vector<TokenId>{60, 50}, &rows, &penalty);
  std::vector<std::vector<std::pair<TokenId, int32_t>>> slices;
  for (const SampleRow& r : rows) {
    auto& slice = slices.emplace_back();
    for (int32_t i = r.penalty_begin; i < r.penalty_end; ++i)
      slice.emplace_back(penalty[i].token, penalty[i].output_count);
  }
  CHECK(slices == decltype(slices){{{7, 2}, {50, 1}}, {}, {{60, 1}}, {{7, 3}, {60, 1}}, {{7, 1}, {8, 1}}});
}

TEST_CASE("clear() leaves a valid empty plan and an empty output") {
  StepPlan plan = good_plan();
  plan.clear();
  CHECK(plan.empty());
  CHECK(plan.num_seqs() == 0);
  CHECK(plan.num_samples() == 0);
  CHECK(validate_step_plan(plan, kNumBlocks).ok());
  StepOutput output;
  output.tokens = {1};
  output.top_start = {0, 1};
  output.clear();
  CHECK(output.tokens.empty());
  CHECK(output.top_start == std::vector<int32_t>{0});
}

TEST_CASE("the dump names every sequence and its blocks") {
  const std::string text = to_string(good_plan());
  CHECK(text.find("3 sequences, 8 tokens, 2 samples") != std::string::npos);
  CHECK(text.find("seq 11: query 1, context 8, blocks 6 7") != std::string::npos);
}

}  // namespace llmb
