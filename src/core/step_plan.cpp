#include "core/step_plan.h"

#include <algorithm>
#include <string>

namespace llmb {

void StepPlan::clear() {
  tokens.clear();
  positions.clear();
  slots.clear();
  seq_ids.clear();
  query_start.assign(1, 0);
  context_len.clear();
  block_start.assign(1, 0);
  block_ids.clear();
  sample_rows.clear();
  bias.clear();
  penalty.clear();
}

void StepOutput::clear() {
  tokens.clear();
  logprobs.clear();
  is_finite.clear();
  top_start.assign(1, 0);
  top_tokens.clear();
  top_logprobs.clear();
  device_ms = 0;
}

namespace {

Status broken(int invariant, int64_t seq, const std::string& what) {
  return internal_error("step plan invariant " + std::to_string(invariant) + " broken at sequence " +
                        std::to_string(seq) + ": " + what);
}

bool is_csr(const std::vector<int32_t>& start, size_t num_seqs, size_t num_items) {
  if (start.size() != num_seqs + 1 || start.front() != 0 || start.back() != static_cast<int32_t>(num_items))
    return false;
  for (size_t s = 0; s < num_seqs; ++s)
    if (start[s + 1] < start[s]) return false;
  return true;
}

Status validate_sequence(const StepPlan& p, int32_t s, int32_t num_blocks, int32_t num_unseen) {
  const int32_t begin = p.query_start[s], end = p.query_start[s + 1];
  if (end <= begin) return broken(1, s, "no tokens");
  const int32_t first_position = p.context_len[s] - (end - begin);
  if (first_position < 0) return broken(2, s, "context_len is less than the number of new tokens");
  const int32_t num_seq_blocks = p.block_start[s + 1] - p.block_start[s];
  if (int64_t{num_seq_blocks} * p.block_size < p.context_len[s]) return broken(3, s, "too few blocks");
  for (int32_t b = p.block_start[s]; b < p.block_start[s + 1]; ++b)
    if (p.block_ids[b] < 0 || p.block_ids[b] >= num_blocks) return broken(3, s, "block id out of range");
  for (int32_t row = begin; row < end; ++row) {
    if (p.tokens[row] < unseen_token(num_unseen - 1)) return broken(6, s, "a token that nothing in flight samples");
    const int32_t position = first_position + (row - begin);
    if (p.positions[row] != position) return broken(2, s, "positions are not consecutive");
    const BlockId block = p.block_ids[p.block_start[s] + position / p.block_size];
    if (p.slots[row] != block * p.block_size + position % p.block_size) return broken(3, s, "slot is not in its block");
  }
  return {};
}

}  // namespace

Status validate_step_plan(const StepPlan& p, int32_t num_blocks, int32_t num_unseen) {
  const size_t num_seqs = p.seq_ids.size();
  if (p.block_size < 1) return broken(3, 0, "block_size");
  if (!is_csr(p.query_start, num_seqs, p.tokens.size())) return broken(1, 0, "query_start");
  if (!is_csr(p.block_start, num_seqs, p.block_ids.size())) return broken(1, 0, "block_start");
  if (p.context_len.size() != num_seqs || p.positions.size() != p.tokens.size() || p.slots.size() != p.tokens.size())
    return broken(1, 0, "array sizes differ");
  for (int32_t s = 0; s < p.num_seqs(); ++s) LLMB_RETURN_IF_ERROR(validate_sequence(p, s, num_blocks, num_unseen));
  std::vector<int32_t> slots = p.slots;
  std::sort(slots.begin(), slots.end());
  const auto twice = std::adjacent_find(slots.begin(), slots.end());
  if (twice != slots.end()) return broken(4, 0, "slot " + std::to_string(*twice) + " written twice");
  int32_t previous = -1;
  for (const SampleRow& row : p.sample_rows) {
    if (row.seq <= previous || row.seq >= p.num_seqs()) return broken(5, row.seq, "sample rows out of order");
    if (row.token_row != p.query_start[row.seq + 1] - 1) return broken(5, row.seq, "does not sample the last row");
    if (row.bias_begin < 0 || row.bias_end < row.bias_begin || row.bias_end > static_cast<int32_t>(p.bias.size()) ||
        row.penalty_begin < 0 || row.penalty_end < row.penalty_begin ||
        row.penalty_end > static_cast<int32_t>(p.penalty.size()))
      return broken(5, row.seq, "slice out of range");
    for (int32_t i = row.penalty_begin; i < row.penalty_end; ++i)
      if (p.penalty[i].token < (i + 1 < row.penalty_end ? 0 : unseen_token(num_unseen - 1)))
        return broken(7, row.seq, "a penalty for a token that nothing in flight samples, or not the last one");
    previous = row.seq;
  }
  return {};
}

void resolve_tokens(const StepPlan& plan, std::span<const TokenId> sampled, std::vector<TokenId>* tokens) {
  *tokens = plan.tokens;
  for (TokenId& token : *tokens)
    if (token < 0) token = sampled[unseen_token(token)];
}

void count_unseen_tokens(std::span<const TokenId> sampled, std::vector<SampleRow>* rows,
                         std::vector<TokenPenalty>* penalty) {
  for (SampleRow& row : *rows) {
    if (!counts_unseen_token(row, *penalty)) continue;
    const auto begin = penalty->begin() + row.penalty_begin, last = penalty->begin() + row.penalty_end - 1;
    last->token = sampled[unseen_token(last->token)];
    const auto same = std::find_if(begin, last, [&](const TokenPenalty& p) { return p.token == last->token; });
    if (same == last) continue;
    ++same->output_count;
    --row.penalty_end;
  }
}

std::string to_string(const StepPlan& p) {
  std::string out = "step " + std::to_string(p.step) + ": " + std::to_string(p.num_seqs()) + " sequences, " +
                    std::to_string(p.num_tokens()) + " tokens, " + std::to_string(p.num_samples()) + " samples\n";
  for (int32_t s = 0; s < p.num_seqs(); ++s) {
    out += "  seq " + std::to_string(p.seq_ids[s]) + ": query " +
           std::to_string(p.query_start[s + 1] - p.query_start[s]) + ", context " + std::to_string(p.context_len[s]) +
           ", blocks";
    for (int32_t b = p.block_start[s]; b < p.block_start[s + 1]; ++b) out += ' ' + std::to_string(p.block_ids[b]);
    out += '\n';
  }
  return out;
}

}  // namespace llmb
