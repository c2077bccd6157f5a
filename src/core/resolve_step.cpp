#include "core/resolve_step.h"

#include <algorithm>

namespace llmb {

namespace {

void resolve_entry(const StepPlan& plan, int32_t e, const GivenTokens& before, ResolvedStep* step) {
  const StepEntry& entry = plan.entries[e];
  const int32_t begin = plan.query_start[e], end = plan.query_start[e + 1];
  const int32_t ahead = entry.follows == kNoGroup ? 0 : std::max(1, before.counts[entry.follows]);
  const int32_t first = entry.base + ahead;
  step->context_len[e] = first + (end - begin);
  for (int32_t row = begin; row < end; ++row) {
    const bool has_parent = !plan.parent_rows.empty() && row > begin;
    step->positions[row] = has_parent ? step->positions[plan.parent_rows[row]] + 1 : first + (row - begin);
  }
  if (!plan.hidden_rows.empty()) return;  // no keys and values are written
  for (int32_t group = 0; group < plan.num_layer_groups; ++group) {
    const BlockId* const table = plan.block_ids.data() + plan.block_start[e * plan.num_layer_groups + group];
    int32_t* const slots = step->slots.data() + int64_t{group} * plan.num_tokens();
    for (int32_t row = begin; row < end; ++row) {
      const int32_t at = first + (row - begin);
      slots[row] = table[at / plan.block_size] * plan.block_size + at % plan.block_size;
    }
  }
}

}  // namespace

void count_unseen_tokens(std::span<const TokenId> last_given, std::vector<SampleRow>* rows,
                         std::vector<TokenPenalty>* penalty) {
  for (SampleRow& row : *rows) {
    if (!counts_unseen_token(row, *penalty)) continue;
    const auto begin = penalty->begin() + row.penalty_begin, last = penalty->begin() + row.penalty_end - 1;
    last->token = last_given[unseen_token(last->token)];
    const auto same = std::find_if(begin, last, [&](const TokenPenalty& p) { return p.token == last->token; });
    if (same == last) continue;
    ++same->output_count;
    --row.penalty_end;
  }
}

void resolve_step(const StepPlan& plan, const GivenTokens& before, ResolvedStep* step) {
  step->tokens = plan.tokens;
  for (TokenId& token : step->tokens)
    if (token < 0) token = before.last[unseen_token(token)];
  step->positions.resize(plan.tokens.size());
  step->slots.resize(plan.tokens.size() * static_cast<size_t>(plan.num_layer_groups));
  step->context_len.resize(plan.entries.size());
  for (int32_t e = 0; e < plan.num_entries(); ++e) resolve_entry(plan, e, before, step);
  step->sample_rows = plan.sample_rows;
  step->penalty = plan.penalty;
  for (SampleRow& row : step->sample_rows)
    row.position = static_cast<uint32_t>(step->positions[row.token_row] + 1);
  count_unseen_tokens(before.last, &step->sample_rows, &step->penalty);
}

void SampledRows::clear() {
  tokens.clear();
  logprobs.clear();
  is_finite.clear();
  top_start.assign(1, 0);
  top_tokens.clear();
  top_logprobs.clear();
}

namespace {

// The row of the group behind `row` that holds `token`; -1: none.
int32_t child_with(const StepPlan& plan, const std::vector<TokenId>& tokens, int32_t row, int32_t end, TokenId token) {
  if (plan.parent_rows.empty()) return row + 1 < end && tokens[row + 1] == token ? row + 1 : -1;
  for (int32_t child = row + 1; child < end; ++child)
    if (plan.parent_rows[child] == row && tokens[child] == token) return child;
  return -1;
}

void give_row(const SampledRows& sampled, int32_t i, StepOutput* out) {
  out->tokens.push_back(sampled.tokens[i]);
  out->logprobs.push_back(sampled.logprobs[i]);
  const auto begin = sampled.top_start[i], end = sampled.top_start[i + 1];
  out->top_tokens.insert(out->top_tokens.end(), sampled.top_tokens.begin() + begin, sampled.top_tokens.begin() + end);
  out->top_logprobs.insert(out->top_logprobs.end(), sampled.top_logprobs.begin() + begin,
                           sampled.top_logprobs.begin() + end);
  out->top_start.push_back(static_cast<int32_t>(out->top_tokens.size()));
}

void give_best(const SampledRows& sampled, int32_t i, StepOutput* out) {
  for (int32_t at = sampled.top_start[i]; at < sampled.top_start[i + 1]; ++at) {
    out->tokens.push_back(sampled.top_tokens[at]);
    out->logprobs.push_back(sampled.top_logprobs[at]);
    out->top_start.push_back(out->top_start.back());
  }
}

// Returns whether every row that it came to is finite.
bool give_group(const StepPlan& plan, const SampleGroup& group, const std::vector<TokenId>& tokens,
                const SampledRows& sampled, StepOutput* out) {
  const int32_t first = plan.sample_rows[group.row_begin].token_row, end = first + group.num_rows();
  if (group.mode == SampleMode::kBest) {
    const bool is_finite = sampled.is_finite[group.row_begin] != 0;
    if (is_finite) give_best(sampled, group.row_begin, out);
    return is_finite;
  }
  for (int32_t row = first; row >= 0;) {
    const int32_t i = group.row_begin + (row - first);
    if (!sampled.is_finite[i]) return false;
    give_row(sampled, i, out);
    row = child_with(plan, tokens, row, end, sampled.tokens[i]);
  }
  return true;
}

}  // namespace

void give_tokens(const StepPlan& plan, const std::vector<TokenId>& tokens, const SampledRows& sampled,
                 StepOutput* output, GivenTokens* given) {
  output->clear();
  output->drawn = sampled.tokens;
  given->counts.clear();
  given->last.clear();
  for (const SampleGroup& group : plan.groups) {
    const bool is_finite = give_group(plan, group, tokens, sampled, output);
    const auto count = static_cast<int32_t>(output->tokens.size()) - output->token_start.back();
    output->token_start.push_back(static_cast<int32_t>(output->tokens.size()));
    output->is_finite.push_back(is_finite);
    given->counts.push_back(count);
    given->last.push_back(count > 0 ? output->tokens.back() : 0);
  }
}

}  // namespace llmb
