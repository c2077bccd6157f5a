// Jobs that are killed again and again until they end.
#pragma once

#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/e2e/run.h"
#include "tests/support/killed_process.h"

namespace llmb::test {

// For the attempt-th run of a job that is continued until it ends: each is stopped later than the one before.
inline StopPlan stop_of_attempt(int attempt) {
  StopPlan plan;
  plan.when = can_count_file_calls() ? StopPlan::When::kAtFileCall : StopPlan::When::kAfterTime;
  plan.file_call = 10 * attempt;
  plan.after_ms = 50 * attempt;
  return plan;
}

// Runs a job again and again, each time killed as stop_of_attempt() says, until a run ends. command_of: the command of the
// attempt-th run. At least one is killed.
inline void kill_until_done(const TemporaryDirectory& dir,
                            const std::function<std::vector<std::string>(int attempt)>& command_of) {
  int num_killed = 0;
  StoppedProcess run;
  for (int attempt = 1; run.exit_code != 0; ++attempt) {
    run = run_and_stop(command_of(attempt), "/dev/null", dir.file("err"), stop_of_attempt(attempt));
    REQUIRE_MESSAGE((run.exit_code == 0 || run.exit_code == 137), run.err);
    num_killed += run.exit_code == 137;
  }
  CHECK(num_killed > 0);
}

// Runs a job into an output file below `dir`, stopped as planned.
using RunInto = std::function<StoppedProcess(const std::string& output, const StopPlan& plan)>;

// Kills the job at six of its file calls, some torn, and continues it to its end: the output is that of an undisturbed
// run. REQUIRES: can_count_file_calls()
inline void check_killed_at_file_calls(const TemporaryDirectory& dir, const RunInto& run_into) {
  StopPlan counting;
  counting.count_calls = true;
  const std::string undisturbed = dir.file("whole.jsonl"), killed = dir.file("out.jsonl");
  const StoppedProcess whole = run_into(undisturbed, counting);
  REQUIRE_MESSAGE(whole.exit_code == 0, whole.err);
  int num_killed = 0;
  for (int part = 1; part <= 6; ++part) {
    StopPlan plan;
    plan.when = StopPlan::When::kAtFileCall;
    plan.file_call = std::max<int64_t>(1, whole.num_file_calls * part / 7);
    plan.signal = SIGKILL;
    if (part % 2 == 0) plan.torn_part = 0.5;
    num_killed += run_into(killed, plan).ended_by_signal;
  }
  CHECK(num_killed > 1);
  CHECK(run_into(killed, {}).exit_code == 0);
  CHECK(stable_output(read_file(killed)) == stable_output(read_file(undisturbed)));
}

}  // namespace llmb::test
