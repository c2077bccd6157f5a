// Requests for models whose windows are a few tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/request.h"

namespace llmb::test {

// One for each length of a prompt; `num_tokens` sampled tokens each, nothing else ends them.
inline std::vector<std::shared_ptr<const Request>> window_requests(const std::vector<int32_t>& prompt_lengths,
                                                                   int32_t num_tokens, int32_t num_choices = 1) {
  std::vector<std::shared_ptr<const Request>> requests;
  for (const int32_t length : prompt_lengths) {
    auto request = std::make_shared<Request>();
    for (int32_t i = 0; i < length; ++i) request->prompt_tokens.push_back(3 + (7 * i + length) % 60);
    request->rng = {11, static_cast<uint64_t>(length)};
    SamplingParams& sampling = request->params.sampling;
    sampling.temperature = 1;
    sampling.num_logprobs = 3;
    sampling.num_choices = num_choices;
    request->params.stop.max_tokens = num_tokens;
    request->params.stop.ignore_eos = true;
    requests.push_back(request);
  }
  return requests;
}

}  // namespace llmb::test
