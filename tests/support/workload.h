// Random workloads for the scheduler, run on the ledger backend with every invariant checked after every step.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/ledger/ledger_backend.h"
#include "core/request.h"
#include "scheduler/scheduler.h"

namespace llmb::test {

// A small generator for tests: splitmix64. The same numbers on every machine.
class TestRng {
 public:
  explicit TestRng(uint64_t seed) : state_(seed) {}
  uint64_t next();
  int32_t between(int32_t low, int32_t high);      // uniform, both ends included
  int32_t log_between(int32_t low, int32_t high);  // uniform in the logarithm; low >= 1
  bool chance(double probability);

 private:
  uint64_t state_;
};

// A request with the prompt 1, 2, 3, … of `num_prompt_tokens`, greedy, that nothing but max_tokens ends.
std::shared_ptr<Request> make_request(int32_t num_prompt_tokens, int32_t max_tokens);

struct Workload {
  uint64_t seed = 0;
  SchedulerConfig config;
  ModelConfig model;  // of the ledger backend
  double eos_rate = 0;
  double step_ms = 1;
  std::vector<std::shared_ptr<const Request>> requests;
  std::vector<double> arrival_ms;  // [requests], does not decrease
  double finish_rate = 0;          // probability a step that the caller ends some sequence, half of them in flight
  double nan_rate = 0;             // probability a step that some sampled row is not finite
  double ahead_rate = 0;  // probability a step that the next one is planned, where it can be, before its output
};

Workload random_workload(uint64_t seed);

struct RequestOutcome {
  std::vector<TokenId> tokens;
  std::optional<FinishReason> finish;  // as the scheduler said
  std::optional<TokenId> stop_token;
  std::optional<RequestError> refused;  // by add()
  bool ended_by_caller = false;
  int num_ends = 0;  // completions it got: must be 1
  int32_t num_preemptions = 0;
};

struct WorkloadOutcome {
  std::string error;  // "" or the first thing that was wrong, with the workload's seed
  std::vector<RequestOutcome> requests;
  int64_t num_steps = 0;
  int64_t num_sampled = 0;
  int64_t num_ahead = 0;  // steps planned ahead
  int64_t num_dead = 0;   // rows sampled for a sequence that had ended
  int64_t num_preemptions = 0;
};

// Runs to the end. Checks after every call: integrity, budgets, progress, the oldest sequence's rights; at the end: no
// leaked block, one completion a request, refused exactly where it can never fit, tokens equal to ledger_reference().
WorkloadOutcome run_workload(const Workload& workload);

}  // namespace llmb::test
