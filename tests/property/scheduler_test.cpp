// Random workloads on small pools: every invariant after every step, and the tokens of the unbatched reference.
// LLMB_NUM_WORKLOADS raises the count (100000 before a change of the scheduler is done, 1000000 for FAULTS row 23),
// LLMB_WORKLOAD_SEED replays one.
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/support/workload.h"

namespace llmb::test {

namespace {

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoll(text, nullptr, 10) : otherwise;
}

}  // namespace

TEST_CASE("FAULTS 23: random workloads end, once each, with the tokens of the unbatched reference") {
  const int64_t first_seed = from_environment("LLMB_WORKLOAD_SEED", 1);
  const bool replay = std::getenv("LLMB_WORKLOAD_SEED") != nullptr;
  const int64_t num_workloads = from_environment("LLMB_NUM_WORKLOADS", replay ? 1 : 20'000);
  int64_t num_steps = 0, num_tokens = 0, num_preemptions = 0, num_refused = 0, num_early = 0, num_ahead = 0,
          num_dead = 0, num_drafts = 0, num_accepted = 0, num_trees = 0, num_followers = 0, num_copies = 0,
          num_shared_rows = 0, num_swaps_out = 0, num_swaps_in = 0, num_by_policy = 0, num_demotions = 0, num_promoted = 0;
  int32_t most_preemptions = 0;
  for (int64_t seed = first_seed; seed < first_seed + num_workloads; ++seed) {
    const WorkloadOutcome outcome = run_workload(random_workload(static_cast<uint64_t>(seed)));
    REQUIRE_MESSAGE(outcome.error.empty(), outcome.error);
    num_steps += outcome.num_steps;
    num_tokens += outcome.num_sampled;
    num_preemptions += outcome.num_preemptions;
    num_ahead += outcome.num_ahead;
    num_dead += outcome.num_dead;
    num_drafts += outcome.num_drafts;
    num_accepted += outcome.num_accepted;
    num_trees += outcome.num_trees;
    num_followers += outcome.num_followers;
    num_copies += outcome.num_copies;
    num_shared_rows += outcome.num_shared_rows;
    num_swaps_out += outcome.num_swaps_out;
    num_swaps_in += outcome.num_swaps_in;
    for (const AnswerOutcome& answer : outcome.answers) {
      num_refused += answer.refused.has_value();
      num_early += answer.ended_by_caller;
      num_by_policy += answer.num_policy_preemptions;
      num_demotions += answer.num_demotions;
      num_promoted += answer.is_promoted;
      most_preemptions = std::max(most_preemptions, answer.num_preemptions);
    }
  }
  MESSAGE(num_workloads << " workloads from seed " << first_seed << ": " << num_steps << " steps, " << num_tokens
                        << " tokens, " << num_preemptions << " preemptions (at most " << most_preemptions
                        << " of a request), " << num_ahead << " steps planned ahead, " << num_dead
                        << " groups of sequences that had ended, " << num_refused << " refused, " << num_early
                        << " ended early, " << num_drafts << " drafts, " << num_accepted << " accepted, " << num_trees
                        << " trees, " << num_followers << " entries behind drafts in flight, " << num_copies
                        << " block copies, " << num_shared_rows << " rows sampled for several choices, "
                        << num_swaps_out << " blocks swapped out, " << num_swaps_in << " in, " << num_by_policy
                        << " preemptions by policy, " << num_demotions << " demotions, "
                        << num_promoted << " promotions");
  if (replay) return;
  // The workloads reach what they are for.
  CHECK(num_preemptions - num_by_policy > num_workloads / 10);
  CHECK(most_preemptions >= 2);
  CHECK(num_ahead > num_steps / 4);
  CHECK(num_dead > num_workloads / 10);
  CHECK(num_refused > num_workloads / 100);
  CHECK(num_early > num_workloads / 100);
  CHECK(num_accepted > num_drafts / 4);
  CHECK(num_accepted < num_drafts * 3 / 4);
  CHECK(num_trees > num_workloads / 4);
  CHECK(num_followers > num_workloads);
  CHECK(num_copies > num_workloads / 10);
  CHECK(num_shared_rows > num_workloads / 10);
  CHECK(num_swaps_out > num_workloads / 10);
  CHECK(num_swaps_in > num_workloads / 10);
  CHECK(num_by_policy > num_workloads / 10);
  CHECK(num_demotions > num_workloads / 10);
  CHECK(num_promoted > num_workloads / 10);
}

TEST_CASE("random workloads of models with windows: the same, and no more blocks than the windows need") {
  const int64_t first_seed = from_environment("LLMB_WORKLOAD_SEED", 1);
  const bool replay = std::getenv("LLMB_WORKLOAD_SEED") != nullptr;
  const int64_t num_workloads = from_environment("LLMB_NUM_WORKLOADS", replay ? 1 : 4'000);
  int64_t num_grouped = 0, num_past_windows = 0, num_preemptions = 0, num_copies = 0, num_accepted = 0,
          num_saved = 0, num_saved_in_windows = 0, num_swaps_in = 0;
  for (int64_t i = first_seed; i < first_seed + num_workloads; ++i) {
    const auto seed = static_cast<uint64_t>(i);
    const Workload workload = random_workload(seed, 5000, random_layer_windows(seed));
    const WorkloadOutcome outcome = run_workload(workload);
    REQUIRE_MESSAGE(outcome.error.empty(), outcome.error);
    num_grouped += workload.config.windows.size() > 1;
    num_past_windows += outcome.num_past_windows > 0;
    if (workload.config.windows.size() > 1) num_saved += outcome.num_saved;
    if (workload.config.windows[0] > 0) num_saved_in_windows += outcome.num_saved;
    num_preemptions += outcome.num_preemptions;
    num_copies += outcome.num_copies;
    num_accepted += outcome.num_accepted;
    if (outcome.num_past_windows > 0) num_swaps_in += outcome.num_swaps_in;
  }
  MESSAGE(num_workloads << " workloads from seed " << first_seed << ": " << num_grouped << " with several groups, "
                        << num_past_windows << " in which sequences outgrew windows, " << num_preemptions
                        << " preemptions, " << num_copies << " block copies, " << num_accepted << " drafts accepted, "
                        << num_saved << " prompt tokens found in several groups, " << num_saved_in_windows
                        << " where all layers see windows, " << num_swaps_in
                        << " blocks swapped in for sequences that outgrew windows");
  if (replay) return;
  CHECK(num_saved > num_workloads);
  CHECK(num_saved_in_windows > num_workloads);
  CHECK(num_swaps_in > num_workloads / 20);
  CHECK(num_grouped > num_workloads / 5);
  CHECK(num_past_windows > num_workloads / 5);
  CHECK(num_preemptions > num_workloads / 10);
  CHECK(num_copies > num_workloads / 20);
  CHECK(num_accepted > num_workloads / 4);
}

TEST_CASE("where no blocks lack, models with windows save what others save of prompts") {
  int64_t with_windows = 0, without = 0, num_compared = 0, num_all_windows = 0;
  for (uint64_t seed = 1; seed <= 1500; ++seed) {
    Workload workload = random_workload(seed, 8, random_layer_windows(seed));
    if (workload.config.windows == std::vector<int32_t>{0}) continue;
    ++num_compared;
    num_all_windows += workload.config.windows[0] > 0;
    workload.config.enable_prefix_caching = true;
    workload.config.max_idle_blocks = INT32_MAX;
    workload.config.num_blocks = 20'000;
    const WorkloadOutcome grouped = run_workload(workload);
    workload.config.windows = {0};
    workload.model.layers.clear();
    const WorkloadOutcome plain = run_workload(workload);
    REQUIRE_MESSAGE(grouped.error.empty(), grouped.error);
    REQUIRE_MESSAGE(plain.error.empty(), plain.error);
    with_windows += grouped.num_saved;
    without += plain.num_saved;
  }
  MESSAGE(num_compared << " workloads, " << num_all_windows << " in which all layers see windows: " << with_windows
                       << " tokens saved, " << without << " where all see everything");
  CHECK(num_compared > 400);
  CHECK(num_all_windows > 200);
  CHECK(without > 2000);
  CHECK(100 * with_windows >= 98 * without);
}

TEST_CASE("random workloads get the same answers whether steps are planned ahead or not") {
  int64_t num_compared = 0;
  for (uint64_t seed = 1; num_compared < 2000; ++seed) {
    Workload workload = random_workload(seed);
    if (workload.finish_rate > 0 || workload.nan_rate > 0) continue;  // these hit by step, whichever that is
    std::vector<WorkloadOutcome> outcomes;
    for (const double rate : {0.0, 1.0}) {
      workload.ahead_rate = rate;
      outcomes.push_back(run_workload(workload));
      REQUIRE_MESSAGE(outcomes.back().error.empty(), outcomes.back().error);
    }
    for (size_t i = 0; i < outcomes[0].answers.size(); ++i) {
      const AnswerOutcome &plain = outcomes[0].answers[i], &ahead = outcomes[1].answers[i];
      REQUIRE(plain.tokens == ahead.tokens);
      REQUIRE(plain.finish == ahead.finish);
      REQUIRE(plain.stop_token == ahead.stop_token);
      REQUIRE(plain.refused.has_value() == ahead.refused.has_value());
    }
    ++num_compared;
  }
}

}  // namespace llmb::test
