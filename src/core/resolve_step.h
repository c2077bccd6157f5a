// Fills in where the step runs what its plan leaves open: before it from what the plan before gave, after it from what
// was drawn for its sample rows. Pure functions for backends on the host; kernels/cuda/resolve_step.h is the twin.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/step_plan.h"

namespace llmb {

// The tokens of a step's groups, as far as the next step needs to know them.
struct GivenTokens {
  std::vector<int32_t> counts;  // [num_groups]
  std::vector<TokenId> last;    // [num_groups]  any token of the vocabulary where the count is 0
};

struct ResolvedStep {
  std::vector<TokenId> tokens;         // [num_tokens]  none unseen
  std::vector<int32_t> positions;      // [num_tokens]
  std::vector<int32_t> slots;          // [num_layer_groups, num_tokens]  KV slot that each row writes
  std::vector<int32_t> context_len;    // [num_entries]  KV slots of the entry's tables in use after the step
  std::vector<SampleRow> sample_rows;  // [num_samples]  with positions; their slices index:
  std::vector<TokenPenalty> penalty;   // with unseen tokens counted, so that a slice names each token at most once
};

// REQUIRES: the plan is valid; `before` is what the plan before gave, where the plan names groups of it.
void resolve_step(const StepPlan& plan, const GivenTokens& before, ResolvedStep* step);

// Whether the row's penalties count an unseen token.
inline bool counts_unseen_token(const SampleRow& row, std::span<const TokenPenalty> penalty) {
  return row.penalty_begin < row.penalty_end && penalty[row.penalty_end - 1].token < 0;
}

// Where the last entry of a row's slice is an unseen token, it joins the count of the token that it turns out to be.
void count_unseen_tokens(std::span<const TokenId> last_given,  // [num_groups of the plan before]
                         std::vector<SampleRow>* rows, std::vector<TokenPenalty>* penalty);

// The token drawn for each sample row of a step.
struct SampledRows {
  std::vector<TokenId> tokens;      // [num_samples]
  std::vector<float> logprobs;      // [num_samples]  0 where none was wanted
  std::vector<uint8_t> is_finite;   // [num_samples]  0: a logit was NaN or +Inf; the token is any of the vocabulary
  std::vector<int32_t> top_start;   // [num_samples + 1]  into top_*
  std::vector<TokenId> top_tokens;  // best first
  std::vector<float> top_logprobs;

  void clear();
};

// Which of them each group gives. `output` and `given` keep their memory.
void give_tokens(const StepPlan& plan,
                 const std::vector<TokenId>& tokens,  // of the step, resolved
                 const SampledRows& sampled, StepOutput* output, GivenTokens* given);

}  // namespace llmb
