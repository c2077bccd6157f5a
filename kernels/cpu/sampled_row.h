// Steps that sample and sample_parts have in common.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/cpu/sample.h"

namespace llmb::cpu {

// Room for the rows' results behind those that are there; returns the first one's place.
inline size_t add_rows(const SampleInput& in, int64_t vocab, SampledRows* out) {
  const size_t first = out->tokens.size(), end = first + in.rows.size();
  if (out->top_start.empty()) out->top_start.push_back(0);
  for (const SampleRow& row : in.rows)
    out->top_start.push_back(out->top_start.back() +
                             static_cast<int32_t>(std::clamp<int64_t>(row.num_logprobs, 0, vocab)));
  out->tokens.resize(end);
  out->logprobs.resize(end);
  out->is_finite.resize(end);
  out->top_tokens.resize(static_cast<size_t>(out->top_start.back()));
  out->top_logprobs.resize(static_cast<size_t>(out->top_start.back()));
  return first;
}

// find(token): where its logit is, null where it may not be chosen, or not here. A logit of -Inf stays.
template <typename Find>
void apply_bias_and_penalties(const SampleInput& in, const SampleRow& row, const Find& find) {
  constexpr float kMax = std::numeric_limits<float>::max();
  for (int32_t i = row.bias_begin; i < row.bias_end; ++i)
    if (float* const x = find(in.bias[i].token)) *x = std::min(*x + in.bias[i].bias, kMax);
  for (int32_t i = row.penalty_begin; i < row.penalty_end; ++i) {
    float* const at = find(in.penalty[i].token);
    if (at == nullptr) continue;
    float x = *at;
    const int32_t count = in.penalty[i].output_count;
    x = x > 0 ? x / row.repetition_penalty : x * row.repetition_penalty;
    x -= row.frequency_penalty * static_cast<float>(count);
    if (count > 0) x -= row.presence_penalty;
    *at = std::min(x, kMax);  // a tiny repetition penalty may overflow
  }
}

}  // namespace llmb::cpu
