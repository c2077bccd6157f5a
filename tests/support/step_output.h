// Outputs of steps, made and changed by hand.
#pragma once

#include <vector>

#include "core/step_plan.h"

namespace llmb::test {

// The group gives nothing: its first row was not finite.
inline void take_back(int32_t group, StepOutput* output) {
  const int32_t begin = output->token_start[group], end = output->token_start[group + 1];
  const int32_t top_begin = output->top_start[begin], top_end = output->top_start[end];
  const auto erase = [](auto& values, int32_t from, int32_t to) {
    values.erase(values.begin() + from, values.begin() + to);
  };
  erase(output->tokens, begin, end);
  erase(output->logprobs, begin, end);
  erase(output->top_tokens, top_begin, top_end);
  erase(output->top_logprobs, top_begin, top_end);
  erase(output->top_start, begin, end);
  for (size_t i = begin; i < output->top_start.size(); ++i) output->top_start[i] -= top_end - top_begin;
  for (size_t g = group + 1; g < output->token_start.size(); ++g) output->token_start[g] -= end - begin;
  output->is_finite[group] = 0;
}

// Appends a group that gives `tokens`.
inline void give(const std::vector<TokenId>& tokens, StepOutput* output) {
  for (const TokenId token : tokens) {
    output->tokens.push_back(token);
    output->logprobs.push_back(0);
    output->top_start.push_back(output->top_start.back());
  }
  output->token_start.push_back(static_cast<int32_t>(output->tokens.size()));
  output->is_finite.push_back(1);
}
inline void give(TokenId token, StepOutput* output) { give(std::vector<TokenId>{token}, output); }

}  // namespace llmb::test
