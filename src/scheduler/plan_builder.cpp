#include "scheduler/plan_builder.h"

#include "base/check.h"

namespace llmb {

namespace {

int32_t length(const auto& items) { return static_cast<int32_t>(items.size()); }

void append_bias(const Sequence& sequence, StepPlan* plan) {
  if (!sequence.may_end_with(sequence.num_output_tokens())) {
    plan->bias.insert(plan->bias.end(), sequence.min_tokens_bias.begin(), sequence.min_tokens_bias.end());
    return;
  }
  for (const auto& [token, bias] : sequence.request->params.sampling.logit_bias) plan->bias.push_back({token, bias});
}

void append_sample_row(const Sequence& sequence, StepPlan* plan) {
  const SamplingParams& sampling = sequence.request->params.sampling;
  SampleRow row;
  row.seq = plan->num_seqs() - 1;
  row.token_row = plan->num_tokens() - 1;
  row.position = static_cast<uint32_t>(sequence.num_known_tokens());
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
    if (sequence.num_unseen_tokens > 0) plan->penalty.push_back({sequence.output_tokens.back(), 1});
  }
  row.penalty_end = length(plan->penalty);
  plan->sample_rows.push_back(row);
}

}  // namespace

void append_to_plan(const Sequence& sequence, int32_t num_tokens, StepPlan* plan) {
  const int32_t begin = sequence.num_computed_tokens, end = begin + num_tokens;
  LLMB_CHECK(num_tokens >= 1 && end <= sequence.num_known_tokens() && end <= sequence.blocks.capacity_tokens());
  for (int32_t position = begin; position < end; ++position) {
    plan->tokens.push_back(sequence.token(position));
    plan->positions.push_back(position);
    plan->slots.push_back(sequence.blocks.slot(position));
  }
  const auto& blocks = sequence.blocks.blocks();
  plan->block_ids.insert(plan->block_ids.end(), blocks.begin(), blocks.end());
  plan->seq_ids.push_back(sequence.id);
  plan->context_len.push_back(end);
  plan->query_start.push_back(plan->num_tokens());
  plan->block_start.push_back(length(plan->block_ids));
  if (end == sequence.num_known_tokens()) append_sample_row(sequence, plan);
}

}  // namespace llmb
