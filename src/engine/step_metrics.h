// Figures of an engine's steps: tokens computed, KV blocks held.
#pragma once

#include <cstdint>

#include "core/model_config.h"
#include "core/step_plan.h"
#include "scheduler/scheduler.h"

namespace llmb {

// Rows of the plan's tokens that no group samples.
int64_t num_unsampled_rows(const StepPlan& plan);

// A value in constant memory. Filled by the engine's thread.
struct StepMetrics {
  void add_step(const ModelConfig& config, const StepPlan& plan, double duration_ms, const KvUsage& kv);

  int64_t num_steps = 0;
  double busy_ms = 0;                            // in steps
  double batch_size_sum = 0;                     // sequences, summed over steps
  double flops = 0;                              // of the matrix products and attention
  double num_context_tokens_read = 0;            // from the KV cache, summed over steps and sequences
  double kv_used_sum = 0, kv_allocated_sum = 0;  // slots, summed over steps
  int64_t kv_allocated_max = 0;
  PromptTokens prompt_tokens;
  int64_t num_block_copies = 0;
  int64_t num_evictions = 0;  // of blocks that the prefix cache held
};

}  // namespace llmb
