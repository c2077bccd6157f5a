// Figures of an engine's steps: tokens computed, KV blocks held.
#pragma once

#include <cstdint>

#include "core/model_config.h"
#include "core/rank_times.h"
#include "core/step_plan.h"
#include "engine/step_timeline.h"
#include "engine/work_counter.h"
#include "scheduler/scheduler.h"

namespace llmb {

// Rows of the plan's tokens that no group samples.
int64_t num_unsampled_rows(const StepPlan& plan);
// Read from the KV cache, at most, summed over entries.
int64_t num_context_tokens(const StepPlan& plan);
// Pairs of prompts' rows and the positions that each of them sees, at most, summed over entries with more than one row.
double num_attended_pairs(const StepPlan& plan);

// Where the time of a run went. A step's time is divided among its rows.
struct TimeShares {
  double prefill_ms = 0, decode_ms = 0;
  double recomputed_ms = 0;  // rows that were computed before their sequence was preempted
  double tail_ms = 0;        // steps with less than half of max_num_seqs, when nothing waits and nothing more comes
  double gap_ms = 0;         // between steps, but for want of requests
};

// A step as the engine saw it.
struct StepFacts {
  double end_ms = 0, duration_ms = 0;  // the end since the start of the run
  double gap_ms = 0;                   // before it
  StepRows rows;
  int64_t num_input_tokens = 0, num_output_tokens = 0;  // that it computed and gave
  int64_t num_waiting = 0;
  bool is_tail = false;
  KvUsage kv{};
};

// A value in constant memory. Filled by the engine's thread.
struct StepMetrics {
  void add_step(const ModelConfig& config, const StepPlan& plan, const StepFacts& facts);
  // The steps of another engine whose run started so much later.
  void add(const StepMetrics& other, double later_ms);

  int64_t num_steps = 0;
  double busy_ms = 0;                            // in steps
  double batch_size_sum = 0;                     // sequences, summed over steps
  double flops = 0;                              // of the matrix products and attention
  double num_context_tokens_read = 0;            // from the KV cache, summed over steps and sequences
  double kv_used_sum = 0, kv_allocated_sum = 0;  // slots, summed over steps
  int64_t kv_allocated_max = 0;
  PromptTokens prompt_tokens;
  int64_t num_block_copies = 0;
  int64_t num_swapped_out = 0, num_swapped_in = 0;  // blocks, to the host's pool and back
  int64_t num_evictions = 0;  // of blocks that the prefix cache held
  int64_t num_adapter_reads = 0;
  int64_t num_recomputed_tokens = 0;
  TimeShares times;
  RankTimes ranks;
  StepTimeline timeline;
};

}  // namespace llmb
