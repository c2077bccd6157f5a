// Runs a program that is to be stopped: at a moment, or just before its n-th file call.
//
// File calls are counted by the kernel (a seccomp filter that reports them to the tracing parent), so the program needs
// no hook and runs as its user has it. Counted: writes, syncs, truncations, renames, removals, locks and opening to
// write.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/process.h"

namespace llmb::test {

struct StopPlan {
  enum class When { kNever, kAfterTime, kAtFileCall };
  When when = When::kNever;
  double after_ms = 0;    // kAfterTime: since the start
  int64_t file_call = 0;  // kAtFileCall: from 1
  int signal = 9;         // sent once, or twice where `twice`
  bool twice = false;     // kAfterTime: again after another after_ms
  double torn_part = 1;   // kAtFileCall, SIGKILL: this part of the call's bytes still gets written, where it is a write
  bool count_calls = false;  // also where nothing is stopped by them
};

struct StoppedProcess {
  int exit_code = -1;            // 128 + signal where a signal ended it
  bool ended_by_signal = false;  // it had no chance to say anything
  bool was_torn = false;         // killed behind a write that was cut short
  double wall_ms = 0;
  int64_t num_file_calls = 0;  // where they were counted
  std::string err;
};

// Whether this machine lets a parent trace its child; without it kAtFileCall is refused.
bool can_count_file_calls();

// stdin comes from `input_path`, stderr goes to `err_path` and into the result. Ends with exit_code -1 after timeout_s.
StoppedProcess run_and_stop(const std::vector<std::string>& argv, const std::string& input_path,
                            const std::string& err_path, const StopPlan& plan,
                            double timeout_s = kProcessTimeoutSeconds);

}  // namespace llmb::test
