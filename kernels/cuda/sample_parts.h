// sample (sample.h) where each rank has the logits of a part of the vocabulary. No rank gets another's logits: ranks
// exchange a few numbers for each row, sums over 256 bins for each digit of a border of top-k and top-p, and the best
// tokens that log probabilities are listed of. The twin of kernels/cpu/sample_parts.
//
// 1. All ranks get the same results, which depend on a row's logits, its SampleRow and the parts alone: counts and
//    borders are exact, other sums are those of the parts, added in the order of ranks.
// 2. Where no rounding of these sums decides, the results are those of sample().
// 3. How many exchanges there are, and of how many bytes, depends on the needs, the number of rows and max_top alone, so
//    a recorded step holds them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>

#include "kernels/cuda/sample.h"

namespace llmb::cuda {

// Tokens [first_token, first_token + SampleInput::vocab) of `vocab` are this rank's. Parts follow each other in the
// order of ranks. REQUIRES: first_token % 32 == 0, and in a part 1 to 2^21 tokens.
struct SampleRanks {
  int32_t rank = 0, size = 1;
  int32_t first_token = 0, vocab = 0;
  uint8_t* mail = nullptr;  // [size, sample_mail_bytes]  in device memory
  // Queues: every rank gets all ranks' first `bytes`, of [size, bytes] at `mail`. Its own are where they belong.
  std::function<void(int64_t bytes)> exchange;
};

// limits: of any part. max_top: the most that results have room for.
int64_t sample_mail_bytes(const SampleLimits& limits, int32_t max_top);

// input.logits and limits.vocab are of this rank's part; rows, biases, penalties and masks of the whole vocabulary, and
// equal on all ranks. workspace: of sample_workspace_bytes(limits), which sample() could use as well. Throws CudaError.
void sample_parts(const SampleInput& input, const SampleNeeds& needs, const SampleResult& result,
                  const SampleLimits& limits, void* workspace, const SampleRanks& ranks, cudaStream_t stream);

}  // namespace llmb::cuda
