// sample: chooses the next token of each row from its logits, and reports log probabilities where wanted. The order of
// mask, bias, penalties and filters, ties, NaN and what is reported are those of kernels/cpu/sample.h.
//
// 1. A row's result depends on its logits and its SampleRow alone, bit for bit: not on other rows, nor on `needs`.
// 2. Weights exp((logit - max) / temperature) have the bits of the CPU's targets with fused multiply-add. Sums of them
//    are fp64 in a fixed order, or exact, so the token is the CPU's except where u * total, or top_p * total, lies
//    within about 1e-13 * total of a border between two tokens and the sums round differently. Sums that fp64 holds
//    exactly (equal weights, powers of two) give the same token always. Greedy and top-k choices are exact.
// 3. Log probabilities differ from the CPU's by at most a unit in the last place.
// 4. A row whose token_row is negative is a padded one: its token is 0, and nothing is read for it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "core/step_plan.h"

namespace llmb::cuda {

// Top log probabilities of one row that the kernels can list; a request may ask for fewer (core/request.h).
constexpr int32_t kMaxListedLogprobs = 1024;

// Which passes some row of a call wants. Passes that no row wants may be left out; a captured graph holds those of its
// needs and serves every step that needs no others.
struct SampleNeeds {
  bool draws = false;         // temperature > 0
  bool filters = false;       // of those: top-k or top-p
  bool edits = false;         // mask, penalties or bias
  bool logprobs = false;      // of the sampled token
  bool top_logprobs = false;  // of the best ones

  bool covers(const SampleNeeds& other) const;
};

SampleNeeds sample_needs(std::span<const SampleRow> rows);

// In device memory. Bias and penalty slices of a row name each token at most once (count_unseen_tokens sees to it).
struct SampleInput {
  float* logits = nullptr;          // [num_rows, vocab]  clobbered
  const SampleRow* rows = nullptr;  // [num_rows]
  const TokenBias* bias = nullptr;  // what the rows' slices index
  const TokenPenalty* penalty = nullptr;
  int32_t num_rows = 0;
  int32_t vocab = 0;                // 1 to 2^22
  const uint32_t* masks = nullptr;  // [num_masks, ceil(vocab / 32)]
};

// In device memory.
struct SampleResult {
  TokenId* tokens = nullptr;      // [num_rows]
  float* logprobs = nullptr;      // [num_rows]  set where needs.logprobs; 0 of a row that wants none
  uint8_t* is_finite = nullptr;   // [num_rows]
  TokenId* top_tokens = nullptr;  // [num_rows, max_top]  a row's first min(num_logprobs, vocab) are set, best first
  float* top_logprobs = nullptr;  // [num_rows, max_top]
  int32_t max_top = 0;            // >= every row's num_logprobs where needs.top_logprobs; at most kMaxListedLogprobs
};

// The most that calls of one workspace ask for.
struct SampleLimits {
  int32_t max_rows = 0;
  int32_t vocab = 0;
  int64_t max_penalties = 0;  // entries of `penalty`
  int64_t max_biases = 0;     // entries of `bias`
};

// Kept by a call between its kernels: so much device memory, zeroed once before the first call. Calls that share a
// workspace must follow each other on a stream.
int64_t sample_workspace_bytes(const SampleLimits& limits);

// REQUIRES: token ids of the slices in [0, vocab), at most limits.max_rows rows. Throws CudaError.
void sample(const SampleInput& input, const SampleNeeds& needs, const SampleResult& result, const SampleLimits& limits,
            void* workspace, cudaStream_t stream);

}  // namespace llmb::cuda
