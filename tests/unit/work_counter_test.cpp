// How far sequences have come: by hand, and over whole runs on the ledger, where all must add up at the end.
#include "engine/work_counter.h"

#include <doctest/doctest.h>

#include "engine/step_timeline.h"

namespace llmb::test {

namespace {

// Entries {sequence, base, rows}.
StepPlan plan_of(const std::vector<std::array<int32_t, 3>>& entries) {
  StepPlan plan;
  plan.clear();
  plan.query_start = {0};
  for (const auto& [seq, base, num_rows] : entries) {
    StepEntry entry;
    entry.seq = seq;
    entry.base = base;
    plan.entries.push_back(entry);
    plan.tokens.resize(plan.tokens.size() + num_rows);
    plan.query_start.push_back(plan.num_tokens());
  }
  return plan;
}

void check_rows(const StepRows& rows, int64_t num_prompt, int64_t num_recomputed, int64_t num_output) {
  CHECK(rows.num_prompt == num_prompt);
  CHECK(rows.num_recomputed == num_recomputed);
  CHECK(rows.num_output == num_output);
}

}  // namespace

TEST_CASE("a prompt in chunks, then tokens one by one") {
  WorkCounter work;
  work.add(7, 10, true);
  CHECK(work.num_tokens() == 0);
  check_rows(work.add_step(plan_of({{7, 0, 6}})), 6, 0, 0);
  CHECK(work.num_tokens() == 6);
  check_rows(work.add_step(plan_of({{7, 6, 4}})), 4, 0, 0);
  work.add_output_token(7);
  CHECK(work.num_tokens() == 11);
  check_rows(work.add_step(plan_of({{7, 10, 1}})), 0, 0, 1);
  work.add_output_token(7);
  CHECK(work.num_tokens() == 12);
  work.remove(7);
  work.remove(7);
  CHECK(work.num_tokens() == 0);
}

TEST_CASE("a prefix that is found counts as done; a preempted sequence's tokens count once") {
  WorkCounter work;
  work.add(1, 20, true);
  check_rows(work.add_step(plan_of({{1, 16, 4}})), 4, 0, 0);
  CHECK(work.num_tokens() == 20);
  work.add_output_token(1);
  check_rows(work.add_step(plan_of({{1, 20, 1}})), 0, 0, 1);
  work.add_output_token(1);
  // Preempted: all 22 known tokens again, in two chunks.
  check_rows(work.add_step(plan_of({{1, 0, 15}})), 0, 15, 0);
  CHECK(work.num_tokens() == 22);
  check_rows(work.add_step(plan_of({{1, 15, 7}})), 0, 6, 1);
  CHECK(work.num_tokens() == 22);
}

TEST_CASE("rejected drafts are not computed again by the next step; rows of an ended sequence are output") {
  WorkCounter work;
  work.add(1, 4, true);
  work.add_step(plan_of({{1, 0, 4}}));
  work.add_output_token(1);
  check_rows(work.add_step(plan_of({{1, 4, 5}})), 0, 0, 5);  // 4 drafts, one is right
  work.add_output_token(1);
  work.add_output_token(1);
  check_rows(work.add_step(plan_of({{1, 6, 1}, {2, 9, 3}})), 0, 0, 4);
  CHECK(work.num_tokens() == 7);
}

TEST_CASE("choices share their prompt") {
  WorkCounter work;
  work.add(1, 10, true);
  work.add(2, 10, false);
  check_rows(work.add_step(plan_of({{1, 0, 10}})), 10, 0, 0);
  work.add_output_token(1);
  work.add_output_token(2);
  CHECK(work.num_tokens() == 12);
  check_rows(work.add_step(plan_of({{1, 10, 1}, {2, 10, 1}})), 0, 0, 2);
  CHECK(work.num_tokens() == 12);
  work.remove(2);
  CHECK(work.num_tokens() == 11);
}

TEST_CASE("a timeline keeps its sums however long the run is, in a bounded number of bins") {
  for (const int num_steps : {1, 239, 240, 241, 1000, 5000}) {
    StepTimeline timeline;
    for (int i = 0; i < num_steps; ++i) timeline.add(125.0 * i, {1, 2, 3, 4, 5, 6});
    CHECK(timeline.bins().size() <= size_t{StepTimeline::kMaxBins});
    CHECK(timeline.bins().size() >= std::min<size_t>(num_steps, StepTimeline::kMaxBins / 2));
    TimelineBin sum;
    for (const TimelineBin& bin : timeline.bins()) sum.add(bin);
    CHECK(sum.busy_ms == num_steps);
    CHECK(sum.num_input_tokens == 2 * num_steps);
    CHECK(sum.num_output_tokens == 3 * num_steps);
    CHECK(sum.kv_use_ms == 6 * num_steps);
    const double per_bin = timeline.bin_ms() / 125;
    CHECK(timeline.bins()[0].busy_ms == std::min<double>(num_steps, per_bin));
  }
}

}  // namespace llmb::test
