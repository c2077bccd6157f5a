// Drafts that only the device knows stand in a plan behind an entry's first row, as far as the backend has slots.
#include "core/drafted_tokens.h"

#include <doctest/doctest.h>

#include <string>

#include "tests/support/plan_builder.h"

namespace llmb::test {

namespace {

// A token after 6 with two drafts behind it, verified.
StepPlan verifying_plan() {
  StepPlan plan;
  plan.clear();
  plan.block_size = 4;
  plan.tokens = {5, drafted_token(0), drafted_token(3)};
  StepEntry entry;
  entry.seq = 11;
  entry.base = 6;
  plan.entries = {entry};
  plan.query_start = {0, 3};
  plan.block_start = {0, 3};
  plan.block_ids = {6, 7, 1};
  plan.groups = {{11, 0, 0, 3, SampleMode::kVerify}};
  for (int32_t row = 0; row < 3; ++row) {
    plan.sample_rows.emplace_back();
    plan.sample_rows.back().token_row = row;
  }
  return plan;
}

std::string broken(const StepPlan& plan, int32_t num_drafted) {
  return validate_step_plan(plan, /*num_blocks=*/8, nullptr, 0, DraftRules{num_drafted}).message().substr(0, 21);
}

}  // namespace

TEST_CASE("a token in a slot is told from those that are known and from those that a plan in flight gives") {
  for (const int32_t slot : {0, 1, 63, 1 << 20}) {
    CHECK(is_drafted(drafted_token(slot)));
    CHECK(drafted_slot(drafted_token(slot)) == slot);
  }
  for (const TokenId token : {0, 1 << 30, unseen_token(0), unseen_token(1 << 20)})
    CHECK((!is_drafted(token) && !is_before_unseen(token)));
  for (const int32_t group : {0, 1, 1 << 20}) {
    CHECK((is_before_unseen(token_before_unseen(group)) && !is_drafted(token_before_unseen(group))));
    CHECK(group_before_unseen(token_before_unseen(group)) == group);
  }
}

TEST_CASE("behind a plan that drafts all lies as far ahead as in that plan; the token before an unseen one stands before it") {
  PlanBuilder drawn(4), behind(4);
  const StepPlan target = verifying_plan();  // gives up to three tokens
  StepPlan first = drawn.follow(0, 7, {0, 1, 2}, SampleRow()).plan();
  first.entries[0].max_ahead = 3;
  const auto message = [](const StepPlan& plan, const StepPlan& in_flight, bool passes_on) {
    return validate_step_plan(plan, /*num_blocks=*/3, &in_flight, 0, DraftRules{0, passes_on}).message().substr(0, 21);
  };
  CHECK(message(first, target, false) == "");
  StepPlan second = behind.follow(0, 8, {0, 1, 2}, SampleRow()).plan();
  second.entries[0].max_ahead = 3;
  CHECK(message(second, first, true) == "");
  CHECK(message(second, first, false) == "step plan invariant 2");
  --first.entries[0].base;
  first.tokens.insert(first.tokens.begin(), token_before_unseen(0));
  ++first.query_start[1], ++first.sample_rows[0].token_row;
  CHECK(message(first, target, false) == "");
  first.tokens[0] = token_before_unseen(1);
  CHECK(message(first, target, false) == "step plan invariant 6");
  first.tokens = {unseen_token(0), token_before_unseen(0)};
  CHECK(message(first, target, false) == "step plan invariant 6");
}

TEST_CASE("drafts that only the device knows are behind an entry's first row, in slots that the backend has") {
  StepPlan plan = verifying_plan();
  CHECK(has_drafted(plan));
  CHECK(broken(plan, 4) == "");
  CHECK(broken(plan, 3) == "step plan invariant 6");
  CHECK(validate_step_plan(plan, 8).message().substr(0, 21) == "step plan invariant 6");
  plan.tokens = {drafted_token(0), 1, 2};
  CHECK(broken(plan, 4) == "step plan invariant 6");
  plan.tokens = {5, 1, 2};
  CHECK(!has_drafted(plan));
  CHECK(broken(plan, 0) == "");
}

TEST_CASE("a layer behind the last one follows what it drafted where drafts may stay on the device") {
  PlanBuilder drawn(4), behind(4);
  const StepPlan first = drawn.add({1, 2, 3}, 2, 1, {0}, SampleRow()).plan();
  StepPlan plan = behind.follow(0, 3, {0}, SampleRow()).plan();
  plan.is_mtp = true;
  const auto message = [&](const StepPlan* in_flight, int32_t num_drafted) {
    return validate_step_plan(plan, /*num_blocks=*/2, in_flight, 0, DraftRules{num_drafted}).message().substr(0, 22);
  };
  CHECK(message(&first, 1) == "");
  CHECK(message(&first, 0) == "step plan invariant 13");
  CHECK(message(nullptr, 1) != "");
  plan.entries[0].base = 0;
  CHECK(message(&first, 1) == "step plan invariant 13");
}

}  // namespace llmb::test
