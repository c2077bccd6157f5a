#include "job/input_forecast.h"

#include <algorithm>

namespace llmb {

PlannedRow InputForecast::add(const Request& request) {
  PlannedRow row = index_prompt(request);
  row.adapter = request.adapter;
  const StopParams& stop = request.params.stop;
  ExpectedRow expected;
  expected.line = request.line.index;
  expected.prompt = row.prompt;
  expected.shared_with = row.shared.prompt;
  expected.num_prompt_tokens = static_cast<int32_t>(request.num_prompt_tokens());
  if (shares_prefixes_)
    expected.num_shared_tokens = std::clamp(row.shared.num_tokens - (request.adapter != kNoAdapter ? 1 : 0), 0,
                                            expected.num_prompt_tokens - 1);
  expected.max_tokens = stop.max_tokens.value_or(1);
  expected.num_choices = request.parts.empty() ? request.params.sampling.num_choices : 1;
  expected.is_exact = (stop.ignore_eos || request.eos_token_ids.empty()) && stop.stop.empty() &&
                      stop.stop_token_ids.empty() && !request.params.sampling.beams;
  forecaster_.add(expected);
  return row;
}

// The last token of a prompt is computed for what it samples, once for all choices.
PlannedRow InputForecast::index_prompt(const Request& request) {
  if (request.is_indivisible) return {prompts_.num_prompts() - 1, {}};
  const auto num_tokens = static_cast<int32_t>(request.prompt_tokens.size());
  const bool has_adapter = request.adapter != kNoAdapter;
  PrefixIndex::Shared shared;
  if (has_adapter) {
    // As a first token, so that rows of one adapter follow each other and share with no others.
    adapter_prompt_ = {-1 - request.adapter};
    adapter_prompt_.insert(adapter_prompt_.end(), request.prompt_tokens.begin(), request.prompt_tokens.end());
    shared = prompts_.add(adapter_prompt_);
  } else {
    shared = prompts_.add(request.prompt_tokens);
  }
  const int64_t num_more_choices = request.parts.empty() ? request.params.sampling.num_choices - 1 : 0;
  const int32_t num_shared = std::max(shared.num_tokens - (has_adapter ? 1 : 0), 0);
  num_repeated_tokens_.fetch_add(std::min(num_shared, num_tokens - 1) + num_more_choices * num_tokens,
                                 std::memory_order_relaxed);
  repeated_granularity_.store(prompts_.granularity(), std::memory_order_relaxed);
  return {prompts_.num_prompts() - 1, shared};
}

}  // namespace llmb
