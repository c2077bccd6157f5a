// sample: chooses the next token of each sample row from its logits, and reports log probabilities where wanted.
//
// Order, vLLM's: mask, bias, penalties (repetition over prompt and output, then frequency and presence over output), then
// greedy at temperature 0; otherwise temperature, min-p, top-k, top-p of what these two keep, and a draw by inverse CDF
// over the kept tokens in order of their ids with sampling_uniform(rng, choice, position). min-p and top-k each keep a
// prefix of the same order, so either may be first.
//
// 1. A row's result depends on its logits and its SampleRow alone.
// 2. Ties go to the lowest id everywhere: the greedy choice, the borders of top-k and top-p, the order of top logprobs.
// 3. Logprobs are of the raw logits. A row that wants k of them gets min(k, vocab) entries in top_*, best first.
// 4. is_finite is 0 where a raw logit is NaN or +Inf, or where mask, bias and penalties leave no token to choose; then
//    tokens[i] is 0 and logprobs are 0. Other rows are not affected.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "core/resolve_step.h"
#include "core/step_plan.h"

namespace llmb::cpu {

struct SampleInput {
  std::span<const SampleRow> rows;
  std::span<const TokenBias> bias;  // what the rows' slices index
  std::span<const TokenPenalty> penalty;
  std::span<const uint32_t> masks = {};  // [num_masks, mask_words]
  int32_t mask_words = 0;
};

// REQUIRES: a mask has a bit for each token; bias and penalty slices are in range; token ids in [0, vocab).
void sample(float* logits,  // [rows, vocab]  clobbered
            int64_t vocab, const SampleInput& in,
            SampledRows* out,  // appended to
            ThreadPool& pool);

}  // namespace llmb::cpu
