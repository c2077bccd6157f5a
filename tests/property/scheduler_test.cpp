// Random workloads on small pools: every invariant after every step, and the tokens of the unbatched reference.
// LLMB_NUM_WORKLOADS raises the count (a run of 1000000 is what FAULTS row 23 asks for), LLMB_WORKLOAD_SEED replays
// one.
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

#include "tests/support/workload.h"

namespace llmb::test {

namespace {

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoll(text, nullptr, 10) : otherwise;
}

}  // namespace

TEST_CASE("random workloads end, once each, with the tokens of the unbatched reference") {
  const int64_t first_seed = from_environment("LLMB_WORKLOAD_SEED", 1);
  const bool replay = std::getenv("LLMB_WORKLOAD_SEED") != nullptr;
  const int64_t num_workloads = from_environment("LLMB_NUM_WORKLOADS", replay ? 1 : 100'000);
  int64_t num_steps = 0, num_tokens = 0, num_preemptions = 0, num_refused = 0, num_early = 0;
  int32_t most_preemptions = 0;
  for (int64_t seed = first_seed; seed < first_seed + num_workloads; ++seed) {
    const WorkloadOutcome outcome = run_workload(random_workload(static_cast<uint64_t>(seed)));
    REQUIRE_MESSAGE(outcome.error.empty(), outcome.error);
    num_steps += outcome.num_steps;
    num_tokens += outcome.num_sampled;
    num_preemptions += outcome.num_preemptions;
    for (const RequestOutcome& request : outcome.requests) {
      num_refused += request.refused.has_value();
      num_early += request.ended_by_caller;
      most_preemptions = std::max(most_preemptions, request.num_preemptions);
    }
  }
  MESSAGE(num_workloads << " workloads from seed " << first_seed << ": " << num_steps << " steps, " << num_tokens
                        << " tokens, " << num_preemptions << " preemptions (at most " << most_preemptions
                        << " of a request), " << num_refused << " refused, " << num_early << " ended early");
  if (replay) return;
  // The workloads reach what they are for.
  CHECK(num_preemptions > num_workloads / 10);
  CHECK(most_preemptions >= 2);
  CHECK(num_refused > num_workloads / 100);
  CHECK(num_early > num_workloads / 100);
}

}  // namespace llmb::test
