#include "engine/step_metrics.h"

#include <algorithm>

namespace llmb {

int64_t num_unsampled_rows(const StepPlan& plan) {
  int64_t count = plan.num_tokens();
  for (const SampleGroup& group : plan.groups)
    if (group.seq == plan.entries[group.entry].seq) count -= group.num_rows();  // others share its row
  return count;
}

void StepMetrics::add_step(const ModelConfig& config, const StepPlan& plan, double duration_ms, const KvUsage& kv) {
  num_steps++;
  busy_ms += duration_ms;
  batch_size_sum += plan.num_entries();
  num_block_copies += static_cast<int64_t>(plan.block_copies.size());
  kv_used_sum += static_cast<double>(kv.used_slots);
  kv_allocated_sum += static_cast<double>(kv.allocated_slots);
  kv_allocated_max = std::max(kv_allocated_max, kv.allocated_slots);
  const double lm_head_params = double{1} * config.vocab_size * config.hidden_size;
  flops += 2 * (static_cast<double>(config.num_matmul_params()) - lm_head_params) * plan.num_tokens();
  flops += 2 * lm_head_params * plan.num_samples();
  double attended = 0;  // (query, position) pairs, at most
  for (int32_t e = 0; e < plan.num_entries(); ++e) {
    const double n = plan.num_rows(e);
    attended += n * plan.entries[e].max_base() + n * (n + 1) / 2;
    num_context_tokens_read += plan.max_context_len(e);
  }
  flops += 4 * attended * static_cast<double>(config.q_size()) * config.num_hidden_layers;
}

}  // namespace llmb
