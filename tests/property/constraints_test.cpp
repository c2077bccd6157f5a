// Random workloads in which rows have constraints: the tokens of the unbatched reference, whatever the schedule,
// preemption, choices, drafts, states and steps planned ahead. LLMB_NUM_WORKLOADS raises the count,
// LLMB_WORKLOAD_SEED replays one.
#include <doctest/doctest.h>

#include <cstdlib>

#include "tests/support/constrained_workload.h"
#include "tests/support/workload.h"

namespace llmb::test {

namespace {

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoll(text, nullptr, 10) : otherwise;
}

}  // namespace

TEST_CASE("random workloads with constraints: the tokens of the unbatched reference") {
  const int64_t first_seed = from_environment("LLMB_WORKLOAD_SEED", 1);
  const bool replay = std::getenv("LLMB_WORKLOAD_SEED") != nullptr;
  const int64_t num_workloads = from_environment("LLMB_NUM_WORKLOADS", replay ? 1 : 10'000);
  int64_t num_constrained = 0, num_preemptions = 0, num_ahead = 0, num_accepted = 0, num_shared_rows = 0, num_stuck = 0;
  for (int64_t i = first_seed; i < first_seed + num_workloads; ++i) {
    Workload workload = random_workload(static_cast<uint64_t>(i), 300);
    if (i % 7 == 0) give_states(&workload);
    if (i % 7 == 3) give_open_groups(&workload);
    num_constrained += constrain(i % 2 == 0 ? 1.0 : 0.5, &workload);
    const WorkloadOutcome outcome = run_workload(workload);
    REQUIRE_MESSAGE(outcome.error.empty(), outcome.error);
    num_preemptions += outcome.num_preemptions;
    num_ahead += outcome.num_ahead;
    num_accepted += outcome.num_accepted;
    num_shared_rows += outcome.num_shared_rows;
    for (const AnswerOutcome& answer : outcome.answers)
      num_stuck += workload.requests[answer.request]->constraint != nullptr && answer.finish == FinishReason::kError;
  }
  MESSAGE(num_workloads << " workloads from seed " << first_seed << ": " << num_constrained
                        << " requests with constraints, " << num_preemptions << " preemptions, " << num_ahead
                        << " steps planned ahead, " << num_accepted << " drafts accepted, " << num_shared_rows
                        << " rows sampled for several choices, " << num_stuck << " answers that could not go on");
  if (replay) return;
  CHECK(num_constrained > num_workloads);
  CHECK(num_preemptions > num_workloads / 10);
  CHECK(num_ahead > num_workloads / 2);
  CHECK(num_accepted > num_workloads / 2);
  CHECK(num_shared_rows > num_workloads / 20);
  CHECK(num_stuck > num_workloads / 50);
}

}  // namespace llmb::test
