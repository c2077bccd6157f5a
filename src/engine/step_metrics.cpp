#include "engine/step_metrics.h"

#include <algorithm>

namespace llmb {

int64_t num_unsampled_rows(const StepPlan& plan) {
  int64_t count = plan.num_tokens();
  for (const SampleGroup& group : plan.groups)
    if (group.seq == plan.entries[group.entry].seq && group.mode != SampleMode::kScore) count -= group.num_rows();  // others share its row
  return count;
}

int64_t num_context_tokens(const StepPlan& plan) {
  int64_t count = 0;
  for (int32_t e = 0; e < plan.num_entries(); ++e) count += plan.max_context_len(e);
  return count;
}

double num_attended_pairs(const StepPlan& plan) {
  double count = 0;
  for (int32_t e = 0; e < plan.num_entries(); ++e) {
    const double rows = plan.num_rows(e);
    if (rows > 1) count += rows * (plan.max_context_len(e) - (rows - 1) / 2);
  }
  return count;
}

namespace {

void add_times(const StepFacts& f, TimeShares* times) {
  times->gap_ms += f.gap_ms;
  if (f.is_tail) {
    times->tail_ms += f.duration_ms;
    return;
  }
  const double ms_per_row = f.duration_ms / static_cast<double>(std::max<int64_t>(1, f.rows.total()));
  times->prefill_ms += ms_per_row * static_cast<double>(f.rows.num_prompt);
  times->recomputed_ms += ms_per_row * static_cast<double>(f.rows.num_recomputed);
  times->decode_ms += ms_per_row * static_cast<double>(f.rows.num_output);
}

}  // namespace

void StepMetrics::add_step(const ModelConfig& config, const StepPlan& plan, const StepFacts& facts) {
  const KvUsage& kv = facts.kv;
  num_steps++;
  busy_ms += facts.duration_ms;
  num_recomputed_tokens += facts.rows.num_recomputed;
  add_times(facts, &times);
  timeline.add(facts.end_ms, {facts.duration_ms, facts.num_input_tokens, facts.num_output_tokens,
                              facts.duration_ms * plan.num_entries(),
                              facts.duration_ms * static_cast<double>(facts.num_waiting),
                              facts.duration_ms * static_cast<double>(kv.allocated_slots) /
                                  static_cast<double>(std::max<int64_t>(1, kv.total_slots))});
  batch_size_sum += plan.num_entries();
  num_block_copies += static_cast<int64_t>(plan.block_copies.size());
  num_swapped_out += static_cast<int64_t>(plan.swaps_out.size());
  num_swapped_in += static_cast<int64_t>(plan.swaps_in.size());
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
  }
  num_context_tokens_read += static_cast<double>(num_context_tokens(plan));
  for (int32_t i = 0; i < config.num_hidden_layers; ++i)
    flops += 2 * attended * static_cast<double>(config.q_size_of(i) + config.gathered_size_of(i));
}

void StepMetrics::add(const StepMetrics& other, double later_ms) {
  num_steps += other.num_steps;
  busy_ms += other.busy_ms;
  batch_size_sum += other.batch_size_sum;
  flops += other.flops;
  num_context_tokens_read += other.num_context_tokens_read;
  kv_used_sum += other.kv_used_sum;
  kv_allocated_sum += other.kv_allocated_sum;
  kv_allocated_max = std::max(kv_allocated_max, other.kv_allocated_max);
  prompt_tokens.num_asked += other.prompt_tokens.num_asked;
  prompt_tokens.num_saved += other.prompt_tokens.num_saved;
  prompt_tokens.num_computed += other.prompt_tokens.num_computed;
  num_block_copies += other.num_block_copies;
  num_adapter_reads += other.num_adapter_reads;
  num_swapped_out += other.num_swapped_out;
  num_swapped_in += other.num_swapped_in;
  num_evictions += other.num_evictions;
  num_recomputed_tokens += other.num_recomputed_tokens;
  times.prefill_ms += other.times.prefill_ms;
  times.decode_ms += other.times.decode_ms;
  times.recomputed_ms += other.times.recomputed_ms;
  times.tail_ms += other.times.tail_ms;
  times.gap_ms += other.times.gap_ms;
  ranks.add(other.ranks);
  timeline.add(other.timeline, later_ms);
}

}  // namespace llmb
