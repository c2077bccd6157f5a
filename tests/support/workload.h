// Random workloads for the scheduler, run with every invariant checked after every step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/ledger/ledger_backend.h"
#include "core/request.h"
#include "scheduler/scheduler.h"
#include "tests/support/scripted_proposer.h"

namespace llmb::test {

// A request with the prompt 1, 2, 3, … of `num_prompt_tokens`, greedy, that nothing but max_tokens ends.
std::shared_ptr<Request> make_request(int32_t num_prompt_tokens, int32_t max_tokens);

struct Workload {
  uint64_t seed = 0;
  SchedulerConfig config;
  ModelConfig model;  // for the ledger backend
  double eos_rate = 0;
  double step_ms = 1;
  std::vector<std::shared_ptr<const Request>> requests;
  std::vector<double> arrival_ms;  // [requests], does not decrease
  double finish_rate = 0;          // probability a step that the caller ends some sequence, half of them in flight
  double nan_rate = 0;             // probability a step that some sampled row is not finite
  double ahead_rate = 0;  // probability a step that the next one is planned, where it can be, before its output
  ProposerScript proposer;
};

// layer_windows: of the model's layers in turn; empty: the model has no windows.
Workload random_workload(uint64_t seed, int32_t max_vocab_size = 5000, const std::vector<int32_t>& layer_windows = {});

// 1 to 8 layers; the first that sees a window sees two positions at least.
std::vector<int32_t> random_layer_windows(uint64_t seed);

// The same for a model whose layers have a recurrent state: nothing is swapped, and drafts are chains.
void give_states(Workload* workload);

// The same over an int4 KV cache, whose sequences have slots for groups that are open: whole groups in a block, and chains.
void give_open_groups(Workload* workload);

struct AnswerOutcome {
  size_t request = 0;
  int32_t choice = 0;
  std::vector<TokenId> tokens;
  std::optional<FinishReason> finish;  // as the scheduler said
  std::optional<TokenId> stop_token;
  std::optional<RequestError> refused;  // by add()
  bool ended_by_caller = false;
  int num_ends = 0;                    // completions it got: must be 1
  int32_t num_preemptions = 0;         // for memory and by policy
  int32_t num_policy_preemptions = 0;  // until its last token but one
  int32_t num_demotions = 0;
  bool is_promoted = false;
};

struct WorkloadOutcome {
  std::string error;                   // "" or the first thing that was wrong, with the workload's seed
  std::vector<AnswerOutcome> answers;  // of all requests, choice by choice
  int64_t num_steps = 0;
  int64_t num_sampled = 0;  // groups of sequences that had not ended
  int64_t num_ahead = 0;    // steps planned ahead
  int32_t most_in_flight = 0;
  int64_t num_dead = 0;     // groups of sequences that had ended
  int64_t num_preemptions = 0;
  int64_t num_drafts = 0, num_accepted = 0;
  int64_t num_trees = 0, num_followers = 0;  // groups that verify trees; entries behind verified groups in flight
  int64_t num_copies = 0;                    // of blocks
  int64_t num_swaps_out = 0, num_swaps_in = 0;  // blocks to and from the host's pool
  int64_t num_saved = 0;                     // prompt tokens that others had computed
  int64_t num_past_windows = 0;              // entries of sequences with blocks that no row sees any more
  int64_t num_shared_rows = 0;               // groups that sample another sequence's row
};

// The tokens and the end that an answer must have, whatever the schedule.
using Reference = std::function<LedgerCompletion(const Request&, int32_t choice)>;

// Runs to the end on the ledger backend. Checks after every call: integrity, budgets, progress, the order, the best sequence's rights; at the
// end: no leaked block, one completion an answer, refused exactly where it can never fit, tokens equal to
// ledger_reference().
WorkloadOutcome run_workload(const Workload& workload);

// The same on another backend, loaded for the workload's config.
WorkloadOutcome run_workload(const Workload& workload, Backend& backend, const Reference& reference);

}  // namespace llmb::test
