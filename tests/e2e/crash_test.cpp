// A short version of `make crash`: FAULTS rows 1, 2 and 7 on the built program. LLMB_CRASH_SEED repeats a run.
#include <doctest/doctest.h>

#include <cstdlib>
#include <random>

#include "tests/e2e/run.h"
#include "tests/support/crash_trial.h"

namespace llmb::test {

TEST_CASE("FAULTS 1, 2, 7: killed or interrupted at random, a job comes out as if nothing had happened") {
  const TemporaryDirectory dir(/*in_memory=*/true);
  CrashOptions options;
  options.program = kProgram;
  options.model_dir = kModel;
  const char* seed = std::getenv("LLMB_CRASH_SEED");
  options.seed = seed ? std::strtoull(seed, nullptr, 10) : std::random_device{}();
  options.num_stops = 60;
  options.budget_s = 12;
  options.directory = dir.path();
  MESSAGE("seed " << options.seed);
  const CrashResult result = run_crash_trials(options);
  CHECK_MESSAGE(!result.failure, result.failure.value_or(""));
  CHECK(result.counts.num_stops > 0);
  MESSAGE(describe(result.counts));
}

}  // namespace llmb::test
