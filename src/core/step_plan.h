// One step of the engine as a value: the scheduler makes a StepPlan, a backend turns it into a StepOutput.
//
// Invariants (checked by validate_step_plan):
//  1. query_start and block_start have num_seqs + 1 entries, begin with 0 and never decrease; every sequence has a
//     token at least.
//  2. The tokens of sequence s are rows [query_start[s], query_start[s+1]); their positions are consecutive and end at
//     context_len[s] - 1.
//  3. block_ids of s hold at least ceil(context_len[s] / block_size) blocks; slots agree with them.
//  4. Each slot is written at most once in a step.
//  5. sample_rows are in order of their sequence; each samples the last row of a sequence, at most one per sequence.
//  6. A negative token is an unseen_token(): what a sample row of the plan submitted right before this one samples.
//     Only a plan submitted while that one is in flight has such tokens.
//  7. In a row's slice of penalty, at most the last entry's token is an unseen_token(): it stands for one occurrence
//     more of that token, which the slice may name as well.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/rng.h"
#include "base/status.h"
#include "core/types.h"

namespace llmb {

// Stands in a plan for the token that row `sample` of the plan before gives.
constexpr TokenId unseen_token(int32_t sample) { return -1 - sample; }

// What a sampler needs for one token. Slices index the plan's shared arrays.
struct SampleRow {
  int32_t seq = 0;        // index of the sequence in this plan
  int32_t token_row = 0;  // row of the plan's tokens whose logits are sampled
  uint32_t position = 0;  // position that the sampled token will take
  PhiloxKey rng;
  float temperature = 0;  // 0: greedy
  float top_p = 1;
  int32_t top_k = 0;  // 0: off
  float min_p = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  int32_t num_logprobs = -1;                   // -1: none wanted; k >= 0: the sampled token's and the k best
  int32_t bias_begin = 0, bias_end = 0;        // into bias
  int32_t penalty_begin = 0, penalty_end = 0;  // into penalty
};

// Added to a token's logit before penalties and temperature; -infinity forbids the token (min_tokens).
struct TokenBias {
  TokenId token;
  float bias;
};

// A token that the row's prompt or output holds. Each token at most once in a row's slice, but for invariant 7.
struct TokenPenalty {
  TokenId token;
  int32_t output_count;  // 0: in the prompt only
};

struct StepPlan {
  int64_t step = 0;         // counts from 0 in a run
  int32_t block_size = 16;  // tokens per KV block

  std::vector<TokenId> tokens;     // [num_tokens]  new tokens of all sequences, packed; < 0: invariant 6
  std::vector<int32_t> positions;  // [num_tokens]
  std::vector<int32_t> slots;      // [num_tokens]  KV slot that each new token writes

  std::vector<SeqId> seq_ids;        // [num_seqs]
  std::vector<int32_t> query_start;  // [num_seqs + 1]  rows of each sequence
  std::vector<int32_t> context_len;  // [num_seqs]  tokens in the KV cache after this step
  std::vector<int32_t> block_start;  // [num_seqs + 1]  into block_ids
  std::vector<BlockId> block_ids;    // block tables, packed

  std::vector<SampleRow> sample_rows;  // [num_samples]
  std::vector<TokenBias> bias;
  std::vector<TokenPenalty> penalty;

  int32_t num_tokens() const { return static_cast<int32_t>(tokens.size()); }
  int32_t num_seqs() const { return static_cast<int32_t>(seq_ids.size()); }
  int32_t num_samples() const { return static_cast<int32_t>(sample_rows.size()); }
  bool empty() const { return tokens.empty(); }
  void clear();  // keeps capacity
};

struct StepOutput {
  std::vector<TokenId> tokens;      // [num_samples]
  std::vector<float> logprobs;      // [num_samples]  of the sampled token, raw distribution; 0 where none was wanted
  std::vector<uint8_t> is_finite;   // [num_samples]  0: a logit was NaN or +Inf; tokens[i] is any of the vocabulary
  std::vector<int32_t> top_start;   // [num_samples + 1]  into top_*
  std::vector<TokenId> top_tokens;  // best first
  std::vector<float> top_logprobs;
  double device_ms = 0;  // that the device worked on the step; 0: not known

  void clear();
};

// Ok, or the number of the invariant that does not hold and where. num_blocks bounds block ids; num_unseen is the
// number of sample rows of the plan before, 0 where that is not in flight.
Status validate_step_plan(const StepPlan& plan, int32_t num_blocks, int32_t num_unseen = 0);

// The plan's tokens, the unseen ones filled in. REQUIRES: valid with num_unseen = sampled.size()
void resolve_tokens(const StepPlan& plan,
                    std::span<const TokenId> sampled,  // [num_samples of the plan before]
                    std::vector<TokenId>* tokens);     // [num_tokens]

// Whether the row's penalties count an unseen token.
inline bool counts_unseen_token(const SampleRow& row, std::span<const TokenPenalty> penalty) {
  return row.penalty_begin < row.penalty_end && penalty[row.penalty_end - 1].token < 0;
}

// Adds the unseen tokens to the counts of rows and penalty, which are a plan's; each token is then in a slice at most
// once. REQUIRES: valid with num_unseen = sampled.size()
void count_unseen_tokens(std::span<const TokenId> sampled,  // [num_samples of the plan before]
                         std::vector<SampleRow>* rows, std::vector<TokenPenalty>* penalty);

// A readable dump, for logs and failing tests.
std::string to_string(const StepPlan& plan);

}  // namespace llmb
