// A row of logits of which a mask leaves few: their values alone, and sums over them with the same bits as over the
// whole row (as block_sums and upper_tail of logit_passes.h add it up) where all others are 0.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/types.h"
#include "kernels/cpu/logit_passes.h"

namespace llmb::cpu {

// Lists the tokens that a mask allows, in order. False where there are more than `most`; then `tokens` has no meaning.
bool list_allowed(std::span<const uint32_t> mask, int64_t vocab, int64_t most, std::vector<TokenId>* tokens);

// block_sums of a row of `vocab` values: values[i] is that of tokens[i], all others are 0.
double block_sums_of_few(std::span<const float> values, std::span<const TokenId> tokens, int64_t vocab,
                         double* sums);  // [ceil(vocab / kSumBlock)]

// upper_tail of such a row. REQUIRES: threshold > 0.
UpperTail upper_tail_of_few(std::span<const float> values, std::span<const TokenId> tokens, int64_t vocab,
                            float threshold);

}  // namespace llmb::cpu
