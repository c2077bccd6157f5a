// Short requests to golden models with adapters, for devices, and what their answers have to be.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/support/adapted_models.h"

namespace llmb::test {

inline constexpr int64_t kRoomForAdapters = int64_t{16} << 20;

// The beginnings of answers to short prompts.
inline AdaptedModel short_adapted_requests(const std::string& name) {
  AdaptedModel model = adapted_model(name);
  std::vector<GenerateRequest> kept;
  std::vector<nlohmann::json> lines;
  for (size_t i = 0; i < model.requests.size(); ++i) {
    GenerateRequest request = model.requests[i];
    if (request.prompt.size() > 7) continue;
    request.num_tokens = std::min(request.num_tokens, 4);
    request.sampling.num_logprobs = 3;
    kept.push_back(request);
    lines.push_back(model.lines[i]);
  }
  model.requests = kept;
  model.lines = lines;
  return model;
}

inline LoadOptions short_adapted_options(const std::string& name, const AdaptedModel& model, DType dtype,
                                         int64_t adapter_bytes) {
  LoadOptions options;
  options.model_dir = fixtures() + "models/" + name;
  options.block_size = 8;
  options.num_blocks_override = 64;
  options.max_num_seqs = 8;
  options.max_num_batched_tokens = 32;
  options.max_model_len = std::min(model.config.max_position_embeddings, 64);
  options.num_threads = 1;
  options.dtype = options.kv_cache_dtype = dtype;
  options.cuda.deterministic = true;
  options.adapters = model.library;
  options.adapter_bytes = adapter_bytes;
  return options;
}

// Tokens and log probabilities of the CPU in fp32, and PEFT's tokens.
inline void check_adapted_answers(const AdaptedModel& model, const std::vector<Generated>& answers,
                                  const std::vector<Generated>& expected) {
  REQUIRE(answers.size() == expected.size());
  for (size_t i = 0; i < answers.size(); ++i) {
    CAPTURE(i);
    CHECK(answers[i].tokens == expected[i].tokens);
    REQUIRE(answers[i].logprobs.size() == expected[i].logprobs.size());
    for (size_t k = 0; k < answers[i].logprobs.size(); ++k)
      CHECK(std::fabs(answers[i].logprobs[k] - expected[i].logprobs[k]) <= 1e-4);
    if (model.lines[i].is_null()) continue;
    auto golden = model.lines[i].at("token_ids").get<std::vector<TokenId>>();
    golden.resize(answers[i].tokens.size());
    CHECK(answers[i].tokens == golden);
  }
}

}  // namespace llmb::test
