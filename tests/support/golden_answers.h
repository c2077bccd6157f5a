// The CPU backend's answers to the lines of a golden file, in float32.
#pragma once

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "model/config_loader.h"
#include "tests/support/plan_builder.h"

namespace llmb::test {

inline std::vector<Generated> golden_answers(const std::string& path, const std::vector<nlohmann::json>& lines) {
  const auto config = load_model_config(path);
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  const auto backend = make_cpu_backend();
  LoadOptions options;
  options.model_dir = path;
  options.max_num_seqs = 32;
  options.max_num_batched_tokens = 64;
  options.max_model_len = config->max_position_embeddings;
  options.num_threads = 2;
  options.dtype = options.kv_cache_dtype = DType::kF32;
  const Status status = backend->load(*config, options);
  REQUIRE_MESSAGE(status.ok(), status.message());
  std::vector<GenerateRequest> requests;
  for (const auto& line : lines) {
    GenerateRequest& r = requests.emplace_back();
    r.prompt = line.at("prompt_token_ids").get<std::vector<TokenId>>();
    r.num_tokens = static_cast<int32_t>(line.at("token_ids").size());
    r.sampling.num_logprobs = 5;
  }
  return generate_at_random(*backend, requests, 64, 32, 1);
}

}  // namespace llmb::test
