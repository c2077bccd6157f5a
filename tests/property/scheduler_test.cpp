// Random workloads on small pools: every invariant after every step, and the tokens of the unbatched reference.
// LLMB_NUM_WORKLOADS raises the count (a run of 1000000 is what FAULTS row 23 asks for), LLMB_WORKLOAD_SEED replays
// one.
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
  const int64_t num_workloads = from_environment("LLMB_NUM_WORKLOADS", replay ? 1 : 100'000);
  int64_t num_steps = 0, num_tokens = 0, num_preemptions = 0, num_refused = 0, num_early = 0, num_ahead = 0,
          num_dead = 0;
  int32_t most_preemptions = 0;
  for (int64_t seed = first_seed; seed < first_seed + num_workloads; ++seed) {
    const WorkloadOutcome outcome = run_workload(random_workload(static_cast<uint64_t>(seed)));
    REQUIRE_MESSAGE(outcome.error.empty(), outcome.error);
    num_steps += outcome.num_steps;
    num_tokens += outcome.num_sampled;
    num_preemptions += outcome.num_preemptions;
    num_ahead += outcome.num_ahead;
    num_dead += outcome.num_dead;
    for (const RequestOutcome& request : outcome.requests) {
      num_refused += request.refused.has_value();
      num_early += request.ended_by_caller;
      most_preemptions = std::max(most_preemptions, request.num_preemptions);
    }
  }
  MESSAGE(num_workloads << " workloads from seed " << first_seed << ": " << num_steps << " steps, " << num_tokens
                        << " tokens, " << num_preemptions << " preemptions (at most " << most_preemptions
                        << " of a request), " << num_ahead << " steps planned ahead, " << num_dead
                        << " rows of sequences that had ended, " << num_refused << " refused, " << num_early
                        << " ended early");
  if (replay) return;
  // The workloads reach what they are for.
  CHECK(num_preemptions > num_workloads / 10);
  CHECK(most_preemptions >= 2);
  CHECK(num_ahead > num_steps / 4);
  CHECK(num_dead > num_workloads / 10);
  CHECK(num_refused > num_workloads / 100);
  CHECK(num_early > num_workloads / 100);
}

TEST_CASE("random workloads get the same answers whether steps are planned ahead or not") {
  int64_t num_compared = 0;
  for (uint64_t seed = 1; num_compared < 5000; ++seed) {
    Workload workload = random_workload(seed);
    if (workload.finish_rate > 0 || workload.nan_rate > 0) continue;  // these hit by step, whichever that is
    std::vector<WorkloadOutcome> outcomes;
    for (const double rate : {0.0, 1.0}) {
      workload.ahead_rate = rate;
      outcomes.push_back(run_workload(workload));
      REQUIRE_MESSAGE(outcomes.back().error.empty(), outcomes.back().error);
    }
    for (size_t i = 0; i < workload.requests.size(); ++i) {
      const RequestOutcome &plain = outcomes[0].requests[i], &ahead = outcomes[1].requests[i];
      REQUIRE(plain.tokens == ahead.tokens);
      REQUIRE(plain.finish == ahead.finish);
      REQUIRE(plain.stop_token == ahead.stop_token);
      REQUIRE(plain.refused.has_value() == ahead.refused.has_value());
    }
    ++num_compared;
  }
}

}  // namespace llmb::test
