#include "scheduler/plan_builder.h"

#include "base/check.h"

namespace llmb {

namespace {

int32_t length(const auto& items) { return static_cast<int32_t>(items.size()); }

void append_bias(const Sequence& sequence, StepPlan* plan) {
  if (!sequence.may_end_with(sequence.num_output_tokens() + sequence.num_in_flight)) {
    plan->bias.insert(plan->bias.end(), sequence.min_tokens_bias.begin(), sequence.min_tokens_bias.end());
    return;
  }
  for (const auto& [token, bias] : sequence.request->params.sampling.logit_bias) plan->bias.push_back({token, bias});
}

void append_sample_row(const Sequence& sequence, StepPlan* plan) {
  const SamplingParams& sampling = sequence.request->params.sampling;
  SampleRow row;
  row.group = plan->num_groups();
  row.token_row = plan->num_tokens() - 1;
  row.rng = sequence.request->rng;
  row.temperature = sampling.temperature;
  row.top_p = sampling.top_p;
  row.top_k = sampling.top_k;
  row.min_p = sampling.min_p;
  row.repetition_penalty = sampling.repetition_penalty;
  row.presence_penalty = sampling.presence_penalty;
  row.frequency_penalty = sampling.frequency_penalty;
  row.num_logprobs = sampling.num_logprobs.value_or(-1);
  row.bias_begin = length(plan->bias);
  append_bias(sequence, plan);
  row.bias_end = length(plan->bias);
  row.penalty_begin = length(plan->penalty);
  if (sequence.penalty_counts) {
    const auto& counts = sequence.penalty_counts->counts();
    plan->penalty.insert(plan->penalty.end(), counts.begin(), counts.end());
    if (sequence.num_in_flight > 0) plan->penalty.push_back({unseen_token(sequence.in_flight[0].group), 1});
  }
  row.penalty_end = length(plan->penalty);
  plan->sample_rows.push_back(row);
}

void append_group(const Sequence& sequence, StepPlan* plan) {
  SampleGroup group;
  group.seq = sequence.id;
  group.entry = plan->num_entries() - 1;
  group.row_begin = plan->num_samples();
  append_sample_row(sequence, plan);
  group.row_end = plan->num_samples();
  plan->groups.push_back(group);
}

}  // namespace

void append_to_plan(const Sequence& sequence, int32_t num_tokens, StepPlan* plan) {
  LLMB_CHECK(sequence.num_in_flight <= 1 && num_tokens >= 1 && num_tokens <= sequence.num_pending_tokens());
  LLMB_CHECK(sequence.max_next_base() + num_tokens <= sequence.blocks.capacity_tokens());
  StepEntry entry;
  entry.seq = sequence.id;
  entry.base = sequence.next_base();
  if (sequence.num_in_flight > 0) {
    entry.follows = sequence.in_flight[0].group;
    entry.max_ahead = sequence.in_flight[0].max_tokens;
    plan->tokens.push_back(unseen_token(entry.follows));
  } else {
    for (int32_t i = 0; i < num_tokens; ++i) plan->tokens.push_back(sequence.token(entry.base + i));
  }
  plan->entries.push_back(entry);
  const auto& blocks = sequence.blocks.blocks();
  plan->block_ids.insert(plan->block_ids.end(), blocks.begin(), blocks.end());
  plan->query_start.push_back(plan->num_tokens());
  plan->block_start.push_back(length(plan->block_ids));
  if (num_tokens == sequence.num_pending_tokens()) append_group(sequence, plan);
}

}  // namespace llmb
