// Jobs that are stopped again and again, at random, and must come out as if nothing had happened: FAULTS rows 1, 2, 3,
// 4 and 7 on the built program and the ledger device. One seed decides everything but the exact moment of a timed stop.
//
// A job is run until it completes, after up to kMaxStops stops in a row (also while it recovers): SIGKILL, SIGTERM or
// SIGINT after a random time or at a random file call, which may be a write that is cut short. Then no line is lost,
// none is there twice, the records sorted by index are byte-equal to those of an uninterrupted run, metrics included,
// the exit code says the same, the manifest says complete and no other file is left.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace llmb::test {

struct CrashOptions {
  std::string program, model_dir;
  uint64_t seed = 1;
  int64_t first_scenario = 0;  // to repeat one that failed
  int64_t num_stops = 100;     // runs that were stopped
  double budget_s = 1e9;
  std::string directory;                                // to work in
  std::function<void(const std::string& line)> report;  // progress; may be empty
};

struct CrashCounts {
  int64_t num_scenarios = 0, num_jobs = 0, num_runs = 0;
  int64_t num_swapping = 0;  // scenarios whose uninterrupted run brings blocks back from the host's memory
  int64_t num_stops = 0;  // runs that were ended by what was sent
  int64_t num_killed = 0, num_killed_at_call = 0, num_torn = 0, num_interrupted = 0;
  double seconds = 0;
};

struct CrashResult {
  CrashCounts counts;
  std::optional<std::string>
      failure;  // what was wrong, with the seed, the scenario and the stops of its job; files are kept
};

CrashResult run_crash_trials(const CrashOptions& options);

std::string describe(const CrashCounts& counts);

}  // namespace llmb::test
