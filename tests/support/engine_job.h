// A job over engine, coordinator and files, on the ledger backend unless another is given, without the command line:
// continued where its partial output says, and failing where a script says.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/ledger/ledger_backend.h"
#include "core/model_config.h"
#include "engine/engine.h"
#include "job/job_progress.h"
#include "tests/support/process.h"
#include "tests/support/scripted_backend.h"

namespace llmb::test {

struct EngineJobOptions {
  ModelConfig config;                          // see tiny_model.h
  std::shared_ptr<const Tokenizer> tokenizer;  // null: prompts are token ids, and there is no text
  std::vector<TokenId> eos_token_ids;
  LedgerOptions ledger;  // its clock, where there is one, is the engine's too
  // Another backend, and how it is loaded but for the scheduler's limits.
  std::function<std::unique_ptr<Backend>()> make_backend;
  LoadOptions load;
  Proposer* proposer = nullptr;
  StepCost* step_cost = nullptr;  // of the proposer
  BackendScript script;
  SchedulerConfig scheduler;  // num_blocks 0: 64
  GenerationParams defaults;  // of all lines
  std::optional<int64_t> max_errors;
  // Called after every step; may raise the number of interrupts.
  std::function<void(const JobProgress&, std::atomic<int>*)> on_progress;
};

struct EngineJobOutcome {
  Status status;
  int64_t num_completed = 0, num_failed = 0, num_left = 0;
  int64_t num_output_tokens = 0, num_preemptions = 0, num_steps = 0;
  double busy_ms = 0;
  std::map<SeqId, int64_t> num_sampled;  // groups that the backend ran; sequences count from 0, in order of the input
  JobProgress last_progress;
};

class EngineJob {
 public:
  explicit EngineJob(const std::string& input);

  // Answers what the partial output lacks, records in order of the input; finishes the output where all is answered.
  // All lines are read before the first step, so that steps do not depend on how fast that goes.
  EngineJobOutcome run(const EngineJobOptions& options) const;

  std::string output() const { return read_file(out_); }
  std::string partial_output() const { return read_file(out_ + ".partial"); }

 private:
  size_t num_lines_;
  TemporaryDirectory dir_;
  const std::string in_ = dir_.file("in.jsonl"), out_ = dir_.file("out.jsonl");
};

// Whole records by their index; a failed check where one is torn or comes twice.
std::map<int64_t, std::string> records_by_index(const std::string& output);

}  // namespace llmb::test
