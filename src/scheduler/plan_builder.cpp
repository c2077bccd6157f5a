#include "scheduler/plan_builder.h"

#include <algorithm>

#include "base/check.h"

namespace llmb {

namespace {

int32_t length(const auto& items) { return static_cast<int32_t>(items.size()); }

// Depth of the row, behind the last pending token, that samples after `draft`; -1: after none.
int32_t depth(const Drafts& drafts, int32_t draft) {
  int32_t count = 0;
  for (; draft >= 0; draft = drafts.parent(draft)) ++count;
  return count;
}

// Returns its index in the plan. Nothing of the sequence is in flight.
int32_t append_mask(ConstraintState& state, StepPlan* plan) {
  const std::span<const uint32_t> allowed = state.allowed();
  plan->mask_words = length(allowed);
  plan->masks.insert(plan->masks.end(), allowed.begin(), allowed.end());
  return plan->num_masks() - 1;
}

// Counts the sequence's tokens, the draft and those before it included.
void append_penalty(const Sequence& sequence, const Drafts& drafts, int32_t draft, StepPlan* plan) {
  if (!sequence.penalty_counts) return;
  std::vector<TokenPenalty>& penalty = plan->penalty;
  const auto begin = static_cast<std::ptrdiff_t>(penalty.size());
  const auto& counts = sequence.penalty_counts->counts();
  penalty.insert(penalty.end(), counts.begin(), counts.end());
  for (; draft >= 0; draft = drafts.parent(draft)) {
    const TokenId token = drafts.tokens[draft];
    const auto same = [token](const TokenPenalty& p) { return p.token == token; };
    const auto at = std::find_if(penalty.begin() + begin, penalty.end(), same);
    if (at != penalty.end()) ++at->output_count;
    else penalty.push_back({token, 1});
  }
  if (sequence.num_in_flight > 0) penalty.push_back({unseen_token(sequence.in_flight[0].group), 1});
}

void append_sample_row(const Sequence& sequence, const Drafts& drafts, const DraftStates& states, int32_t draft,
                       int32_t token_row, StepPlan* plan) {
  const SamplingParams& sampling = sequence.request->params.sampling;
  SampleRow row;
  row.group = plan->num_groups();
  row.token_row = token_row;
  row.choice = static_cast<uint32_t>(sequence.choice);
  row.rng = sequence.request->rng;
  row.temperature = sampling.temperature;
  row.top_p = sampling.top_p;
  row.top_k = sampling.top_k;
  row.min_p = sampling.min_p;
  row.repetition_penalty = sampling.repetition_penalty;
  row.presence_penalty = sampling.presence_penalty;
  row.frequency_penalty = sampling.frequency_penalty;
  row.num_logprobs = sequence.is_beam() ? num_best_tokens(*sequence.request)
                                        : sampling.num_logprobs.value_or(sampling.is_ranked() ? 0 : -1);
  row.bias_begin = length(plan->bias);
  sequence.append_bias(sequence.num_output_tokens() + sequence.num_in_flight + depth(drafts, draft), &plan->bias);
  row.bias_end = length(plan->bias);
  row.penalty_begin = length(plan->penalty);
  append_penalty(sequence, drafts, draft, plan);
  row.penalty_end = length(plan->penalty);
  if (sequence.constraint != nullptr) row.mask = append_mask(draft < 0 ? *sequence.constraint : *states[draft], plan);
  plan->sample_rows.push_back(row);
}

void append_group(const Sequence& sequence, const Drafts& drafts, const DraftStates& states, int32_t entry,
                  int32_t first_row, StepPlan* plan) {
  SampleGroup group;
  group.seq = sequence.id;
  group.entry = entry;
  if (sequence.is_beam()) group.mode = SampleMode::kBest;
  else if (drafts.size() > 0) group.mode = SampleMode::kVerify;
  group.row_begin = plan->num_samples();
  for (int32_t draft = -1; draft < drafts.size(); ++draft)
    append_sample_row(sequence, drafts, states, draft, first_row + 1 + draft, plan);
  group.row_end = plan->num_samples();
  plan->groups.push_back(group);
}

// From the first tree on, every row of the plan has a parent.
void append_parents(const Drafts& drafts, StepPlan* plan) {
  if (drafts.parents.empty() && plan->parent_rows.empty()) return;
  while (length(plan->parent_rows) < plan->num_tokens()) plan->parent_rows.push_back(length(plan->parent_rows) - 1);
  const int32_t first_draft = plan->num_tokens() - drafts.size();
  for (int32_t draft = 0; draft < drafts.size(); ++draft)
    plan->parent_rows[first_draft + draft] = first_draft + drafts.parent(draft);
}

// The first block that is there stands for those before it, which nobody reads.
void append_tables(const BlockTable& table, StepPlan* plan) {
  for (int32_t g = 0; g < table.num_groups(); ++g) {
    const auto& blocks = table.blocks(g);
    const int32_t num_given_back = table.num_blocks() - table.num_live(g);
    plan->block_ids.insert(plan->block_ids.end(), num_given_back, blocks[num_given_back]);
    plan->block_ids.insert(plan->block_ids.end(), blocks.begin() + num_given_back, blocks.end());
    plan->block_start.push_back(length(plan->block_ids));
  }
}

// But for its tables and its group.
void append_rows(const Sequence& sequence, int32_t num_tokens, const Drafts& drafts, StepPlan* plan) {
  LLMB_CHECK(sequence.num_in_flight <= 1 && num_tokens >= 1 && num_tokens <= sequence.num_pending_tokens());
  LLMB_CHECK(drafts.size() == 0 || num_tokens == sequence.num_pending_tokens());
  StepEntry entry;
  entry.seq = sequence.id;
  entry.base = sequence.next_base();
  entry.adapter = sequence.request->adapter;
  entry.state_slot = sequence.state_slot;
  entry.is_indivisible = sequence.request->is_indivisible;
  entry.second_text = sequence.request->second_text;
  if (sequence.num_in_flight > 0) {
    entry.follows = sequence.in_flight[0].group;
    entry.max_ahead = sequence.in_flight[0].max_tokens;
    plan->tokens.push_back(unseen_token(entry.follows));
  } else {
    for (int32_t i = 0; i < num_tokens; ++i) plan->tokens.push_back(sequence.token(entry.base + i));
  }
  plan->tokens.insert(plan->tokens.end(), drafts.tokens.begin(), drafts.tokens.end());
  append_parents(drafts, plan);
  plan->entries.push_back(entry);
  plan->query_start.push_back(plan->num_tokens());
}

// A row for each of the prompt's tokens that stands behind one of the entry's and is to be scored.
void append_score_group(const Sequence& sequence, int32_t num_tokens, StepPlan* plan) {
  constexpr float kOnlyChoice = 1e30f;  // the log-probability is that of the logit without it
  const auto [begin, end] = sequence.scored_by(num_tokens);
  if (begin == end) return;
  const int32_t group = plan->num_groups(), first_row = plan->query_start[plan->num_entries() - 1];
  plan->groups.push_back({sequence.id, plan->num_entries() - 1, plan->num_samples(), plan->num_samples() + end - begin,
                          SampleMode::kScore});
  for (int32_t token = begin; token < end; ++token) {
    SampleRow row;
    row.group = group;
    row.token_row = first_row + token - 1 - sequence.next_base();
    row.rng = sequence.request->rng;
    row.num_logprobs = *sequence.request->params.score.prompt_logprobs;
    row.bias_begin = length(plan->bias);
    plan->bias.push_back({sequence.token(token), kOnlyChoice});
    row.bias_end = length(plan->bias);
    row.penalty_begin = row.penalty_end = length(plan->penalty);
    plan->sample_rows.push_back(row);
  }
}

}  // namespace

void append_entry(const Sequence& sequence, int32_t num_tokens, const Drafts& drafts, const DraftStates& states,
                  StepPlan* plan) {
  LLMB_CHECK(sequence.constraint == nullptr || length(states) == drafts.size());
  LLMB_CHECK(sequence.max_next_base() + num_tokens + drafts.size() <= sequence.blocks.capacity_tokens());
  append_rows(sequence, num_tokens, drafts, plan);
  append_tables(sequence.blocks, plan);
  append_score_group(sequence, num_tokens, plan);
  if (num_tokens < sequence.num_pending_tokens()) return;
  append_group(sequence, drafts, states, plan->num_entries() - 1, plan->num_tokens() - drafts.size() - 1, plan);
}

void append_entry(const Sequence& sequence, int32_t num_tokens, std::span<const BlockId> table, StepPlan* plan) {
  append_rows(sequence, num_tokens, Drafts(), plan);
  plan->block_ids.insert(plan->block_ids.end(), table.begin(), table.end());
  plan->block_start.push_back(length(plan->block_ids));
  if (num_tokens == sequence.num_pending_tokens())
    append_group(sequence, Drafts(), DraftStates(), plan->num_entries() - 1, plan->num_tokens() - 1, plan);
}

void append_group_like(const Sequence& sequence, int32_t group, StepPlan* plan) {
  const int32_t first_row = plan->sample_rows[plan->groups[group].row_begin].token_row;
  append_group(sequence, Drafts(), DraftStates(), plan->groups[group].entry, first_row, plan);
}

}  // namespace llmb
