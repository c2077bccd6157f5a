// Random workloads on small pools: every invariant after every step, and the tokens of the unbatched reference.
// LLMB_NUM_WORKLOADS raises the count (100000 before a change of the scheduler is done, 1000000 for FAULTS row 23),
// LLMB_WORKLOAD_SEED replays one.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/workload.h"

namespace llmb::test {

namespace {

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoll(text, nullptr, 10) : otherwise;
}

struct Seeds {
  int64_t first, num;
  bool is_replay;
};

Seeds chosen_seeds(int64_t num_by_default) {
  const bool is_replay = std::getenv("LLMB_WORKLOAD_SEED") != nullptr && std::getenv("LLMB_NUM_WORKLOADS") == nullptr;
  return {from_environment("LLMB_WORKLOAD_SEED", 1),
          from_environment("LLMB_NUM_WORKLOADS", is_replay ? 1 : num_by_default), is_replay};
}

// Events that workloads are to reach, and in how many of them they happen: a sum over all would hang on a few long ones.
class Aims {
 public:
  // least_share: of the workloads in which it happens.
  void note(const std::string& what, int64_t num_times, double least_share) {
    Aim& aim = aims_[what];
    aim.least_share = least_share;
    aim.num_workloads += num_times > 0;
    aim.num_times += num_times;
  }

  std::string text() const {
    std::string text;
    for (const auto& [what, aim] : aims_)
      text += (text.empty() ? "" : ", ") + std::to_string(aim.num_times) + " " + what + " in " +
              std::to_string(aim.num_workloads);
    return text;
  }

  // Four standard deviations less: the shares asked for, three quarters of those that 20,000 workloads have, hold for
  // any seeds and any count, and mean nothing for a few workloads.
  void check(int64_t num_workloads) const {
    for (const auto& [what, aim] : aims_) {
      CAPTURE(what);
      const double least = aim.least_share * static_cast<double>(num_workloads);
      CHECK(static_cast<double>(aim.num_workloads) >= least - 4 * std::sqrt(least));
    }
  }

 private:
  struct Aim {
    double least_share = 0;
    int64_t num_workloads = 0, num_times = 0;
  };
  std::map<std::string, Aim> aims_;
};

}  // namespace

TEST_CASE("random workloads of sequences with states end, once each, with the tokens of the unbatched reference") {
  const Seeds seeds = chosen_seeds(3'000);
  Aims aims;
  for (int64_t seed = seeds.first; seed < seeds.first + seeds.num; ++seed) {
    Workload workload = random_workload(static_cast<uint64_t>(seed));
    give_states(&workload);
    const WorkloadOutcome outcome = run_workload(workload);
    REQUIRE_MESSAGE(outcome.error.empty(), outcome.error);
    aims.note("preemptions", outcome.num_preemptions, 0.1);
    aims.note("steps planned ahead", outcome.num_ahead, 0.4);
    aims.note("rows sampled for several choices", outcome.num_shared_rows, 0.05);
    aims.note("prompt tokens found behind snapshots", outcome.num_saved, 0.05);
    aims.note("accepted drafts", outcome.num_accepted, 0.15);
    aims.note("rejected drafts", outcome.num_drafts - outcome.num_accepted, 0.15);
    aims.note("entries behind drafts in flight", outcome.num_followers, 0.05);
  }
  MESSAGE(seeds.num << " workloads: " << aims.text());
  if (!seeds.is_replay) aims.check(seeds.num);
}

TEST_CASE("random workloads over a cache with open groups end, once each, with the tokens of the unbatched reference") {
  const Seeds seeds = chosen_seeds(4'000);
  Aims aims;
  for (int64_t i = seeds.first; i < seeds.first + seeds.num; ++i) {
    const auto seed = static_cast<uint64_t>(i);
    Workload workload =
        i % 4 == 0 ? random_workload(seed, 5000, random_layer_windows(seed)) : random_workload(seed);
    give_open_groups(&workload);
    const WorkloadOutcome outcome = run_workload(workload);
    REQUIRE_MESSAGE(outcome.error.empty(), outcome.error);
    aims.note("preemptions", outcome.num_preemptions, 0.03);
    aims.note("steps planned ahead", outcome.num_ahead, 0.4);
    aims.note("rows sampled for several choices", outcome.num_shared_rows, 0.05);
    aims.note("prompt tokens found in whole blocks", outcome.num_saved, 0.01);
    aims.note("blocks swapped in", outcome.num_swaps_in, 0.003);
    aims.note("block copies", outcome.num_copies, 0.03);
    aims.note("accepted drafts", outcome.num_accepted, 0.15);
    aims.note("rejected drafts", outcome.num_drafts - outcome.num_accepted, 0.15);
    aims.note("entries behind drafts in flight", outcome.num_followers, 0.05);
  }
  MESSAGE(seeds.num << " workloads: " << aims.text());
  if (!seeds.is_replay) aims.check(seeds.num);
}

TEST_CASE("FAULTS 23: random workloads end, once each, with the tokens of the unbatched reference") {
  const Seeds seeds = chosen_seeds(8'000);
  int64_t num_steps = 0, num_tokens = 0;
  int32_t most_preemptions = 0;
  Aims aims;
  for (int64_t seed = seeds.first; seed < seeds.first + seeds.num; ++seed) {
    const WorkloadOutcome outcome = run_workload(random_workload(static_cast<uint64_t>(seed)));
    REQUIRE_MESSAGE(outcome.error.empty(), outcome.error);
    num_steps += outcome.num_steps;
    num_tokens += outcome.num_sampled;
    int64_t num_refused = 0, num_early = 0, num_by_policy = 0, num_demotions = 0, num_promoted = 0, num_twice = 0;
    for (const AnswerOutcome& answer : outcome.answers) {
      num_refused += answer.refused.has_value();
      num_early += answer.ended_by_caller;
      num_by_policy += answer.num_policy_preemptions;
      num_demotions += answer.num_demotions;
      num_promoted += answer.is_promoted;
      num_twice += answer.num_preemptions >= 2;
      most_preemptions = std::max(most_preemptions, answer.num_preemptions);
    }
    aims.note("preemptions for memory", outcome.num_preemptions - num_by_policy, 0.04);
    aims.note("requests preempted twice", num_twice, 0.012);
    aims.note("steps planned ahead", outcome.num_ahead, 0.45);
    aims.note("groups of sequences that had ended", outcome.num_dead, 0.12);
    aims.note("refused requests", num_refused, 0.15);
    aims.note("answers ended early", num_early, 0.09);
    aims.note("accepted drafts", outcome.num_accepted, 0.2);
    aims.note("rejected drafts", outcome.num_drafts - outcome.num_accepted, 0.2);
    aims.note("trees", outcome.num_trees, 0.037);
    aims.note("entries behind drafts in flight", outcome.num_followers, 0.1);
    aims.note("block copies", outcome.num_copies, 0.13);
    aims.note("rows sampled for several choices", outcome.num_shared_rows, 0.06);
    aims.note("blocks swapped out", outcome.num_swaps_out, 0.015);
    aims.note("blocks swapped in", outcome.num_swaps_in, 0.012);
    aims.note("preemptions by policy", num_by_policy, 0.04);
    aims.note("demotions", num_demotions, 0.05);
    aims.note("promotions", num_promoted, 0.06);
  }
  MESSAGE(seeds.num << " workloads from seed " << seeds.first << ": " << num_steps << " steps, " << num_tokens
                    << " tokens, at most " << most_preemptions << " preemptions of a request; " << aims.text());
  if (!seeds.is_replay) aims.check(seeds.num);
}

TEST_CASE("random workloads of models with windows: the same, and no more blocks than the windows need") {
  const Seeds seeds = chosen_seeds(2'000);
  Aims aims;
  for (int64_t i = seeds.first; i < seeds.first + seeds.num; ++i) {
    const auto seed = static_cast<uint64_t>(i);
    const Workload workload = random_workload(seed, 5000, random_layer_windows(seed));
    const WorkloadOutcome outcome = run_workload(workload);
    REQUIRE_MESSAGE(outcome.error.empty(), outcome.error);
    const bool has_groups = workload.config.windows.size() > 1, sees_windows_only = workload.config.windows[0] > 0;
    aims.note("several groups", has_groups, 0.22);
    aims.note("sequences that outgrow windows", outcome.num_past_windows, 0.25);
    aims.note("preemptions", outcome.num_preemptions, 0.06);
    aims.note("block copies", outcome.num_copies, 0.12);
    aims.note("accepted drafts", outcome.num_accepted, 0.2);
    aims.note("prompt tokens found in several groups", has_groups ? outcome.num_saved : 0, 0.07);
    aims.note("prompt tokens found where all layers see windows", sees_windows_only ? outcome.num_saved : 0, 0.065);
    aims.note("blocks swapped in for sequences that outgrew windows",
              outcome.num_past_windows > 0 ? outcome.num_swaps_in : 0, 0.005);
  }
  MESSAGE(seeds.num << " workloads from seed " << seeds.first << ": " << aims.text());
  if (!seeds.is_replay) aims.check(seeds.num);
}

TEST_CASE("plans that alternate, for stages of a pipeline: as many in flight as stages, and the same answers") {
  const Seeds seeds = chosen_seeds(3'000);
  Aims aims;
  for (int64_t i = seeds.first; i < seeds.first + seeds.num; ++i) {
    const auto seed = static_cast<uint64_t>(i);
    Workload workload =
        i % 4 == 0 ? random_workload(seed, 5000, random_layer_windows(seed)) : random_workload(seed);
    if (i % 4 == 1) {
      give_states(&workload);
      workload.config.num_state_slots += workload.config.max_num_seqs;  // of those that end with several plans
    }
    TestRng rng(seed ^ 0x737461676573);
    workload.config.num_alternating = rng.between(2, rng.chance(0.1) ? 16 : 5);
    if (rng.chance(0.3)) workload.proposer.idle_rate = rng.chance(0.1) ? 1 : 0.1;
    const WorkloadOutcome outcome = run_workload(workload);
    REQUIRE_MESSAGE(outcome.error.empty(), outcome.error);
    CHECK(outcome.most_in_flight <= workload.config.num_alternating);
    aims.note("as many plans in flight as stages", outcome.most_in_flight == workload.config.num_alternating, 0.16);
    aims.note("preemptions", outcome.num_preemptions, 0.07);
    aims.note("accepted drafts", outcome.num_accepted, 0.2);
    aims.note("rows sampled for several choices", outcome.num_shared_rows, 0.13);
    aims.note("block copies", outcome.num_copies, 0.1);
  }
  MESSAGE(seeds.num << " workloads: " << aims.text());
  if (!seeds.is_replay) aims.check(seeds.num);
}

TEST_CASE("rows of several adapters get their own answers: no prefix is shared between adapters") {
  int64_t num_saved = 0;
  for (uint64_t seed = 1; seed <= 600; ++seed) {
    Workload workload = random_workload(seed);
    TestRng rng(seed);
    for (std::shared_ptr<const Request>& request : workload.requests) {
      auto adapted = std::make_shared<Request>(*request);
      adapted->adapter = rng.between(-1, 1);
      request = std::move(adapted);
    }
    const WorkloadOutcome outcome = run_workload(workload);
    REQUIRE_MESSAGE(outcome.error.empty(), outcome.error);
    num_saved += outcome.num_saved;
  }
  CHECK(num_saved > 0);
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
