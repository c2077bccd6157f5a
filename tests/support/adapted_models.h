// Golden models with golden LoRA adapters (tools/golden/make_golden_adapters.py), and how far an answer is from PEFT's.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "model/adapter_library.h"
#include "model/config_loader.h"
#include "tests/support/golden.h"
#include "tests/support/plan_builder.h"
#include "tests/support/source_dir.h"

namespace llmb::test {

inline std::string fixtures() { return source_dir() + "/data/fixtures/"; }

// Models that have golden adapters, by name.
inline std::vector<std::string> adapted_models() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(fixtures() + "adapters"))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

struct AdaptedModel {
  ModelConfig config;
  std::shared_ptr<AdapterLibrary> library;
  std::vector<GenerateRequest> requests;  // of all adapters' golden lines, each also without an adapter
  std::vector<nlohmann::json> lines;      // null: without
};

inline AdaptedModel adapted_model(const std::string& name) {
  AdaptedModel model;
  model.config = load_model_config(fixtures() + "models/" + name).value();
  model.library = std::make_shared<AdapterLibrary>(adapters_below(fixtures() + "adapters/" + name).value(),
                                                   model.config, fixtures() + "models/" + name);
  for (int32_t id = 0; id < model.library->size(); ++id) {
    const Status status = model.library->prepare(id);
    REQUIRE_MESSAGE(status.ok(), status.message());
    const std::string folder = fixtures() + "adapters/" + name + "/" + model.library->name(id);
    for (const nlohmann::json& line : read_json_lines(folder + "/golden.jsonl")) {
      GenerateRequest& with = model.requests.emplace_back();
      with.prompt = line.at("prompt_token_ids").get<std::vector<TokenId>>();
      with.num_tokens = static_cast<int32_t>(line.at("token_ids").size());
      with.sampling.num_logprobs = model.config.vocab_size;
      with.adapter = id;
      model.lines.push_back(line);
      GenerateRequest without = with;
      without.adapter = -1;
      without.num_tokens = 3;
      model.requests.push_back(without);
      model.lines.emplace_back();
    }
  }
  return model;
}

inline std::unique_ptr<Backend> load_adapted(const std::string& name, const AdaptedModel& model,
                                             int64_t adapter_bytes,
                                             std::unique_ptr<Backend> backend = make_cpu_backend()) {
  LoadOptions options;
  options.model_dir = fixtures() + "models/" + name;
  options.block_size = 4;
  options.max_num_seqs = 32;
  options.max_num_batched_tokens = 64;
  options.max_model_len = model.config.max_position_embeddings;
  options.num_threads = 2;
  options.dtype = options.kv_cache_dtype = DType::kF32;
  options.adapters = model.library;
  options.adapter_bytes = adapter_bytes;
  return loaded(std::move(backend), model.config, options);
}

// By token.
inline std::vector<double> log_softmax(const std::vector<double>& logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double l : logits) sum += std::exp(l - top);
  std::vector<double> out;
  for (const double l : logits) out.push_back(l - top - std::log(sum));
  return out;
}

// The largest over all log-probabilities, as a share of the largest logit where that is above 1.
inline double largest_difference(const Generated& answer, const nlohmann::json& line) {
  const auto logits = line.at("last_prompt_logits").get<std::vector<double>>();
  const std::vector<double> expected = log_softmax(logits);
  REQUIRE(answer.top_tokens[0].size() == expected.size());
  double largest = 0, scale = 1;
  for (const double logit : logits) scale = std::max(scale, std::fabs(logit));
  for (size_t k = 0; k < expected.size(); ++k) {
    const double difference = std::fabs(answer.top_logprobs[0][k] - expected.at(answer.top_tokens[0][k]));
    if (!(difference <= largest)) largest = difference;
  }
  return largest / scale;
}

}  // namespace llmb::test
