// A model's answers to the lines of a golden file, in float32 on the CPU.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "model/config_loader.h"
#include "tests/support/compare.h"
#include "tests/support/golden.h"
#include "tests/support/plan_builder.h"

namespace llmb::test {

// For all lines of a golden file at a time, in float32.
inline LoadOptions golden_options(const std::string& dir, const ModelConfig& config, int32_t block_size,
                                  bool groups_layers) {
  LoadOptions options;
  options.model_dir = dir;
  options.block_size = block_size;
  options.groups_layers = groups_layers;
  options.max_num_seqs = 32;
  options.max_num_batched_tokens = 64;
  options.max_model_len = config.max_position_embeddings;
  options.num_threads = 2;
  options.dtype = options.kv_cache_dtype = DType::kF32;
  return options;
}

// For a rank's thread.
inline LoadOptions rank_golden_options(const std::string& dir, const ModelConfig& config) {
  LoadOptions options = golden_options(dir, config, 4, /*groups_layers=*/true);
  options.num_threads = 1;
  return options;
}

inline std::unique_ptr<Backend> load_f32(const std::string& dir, const ModelConfig& config, int32_t block_size,
                                         bool groups_layers = false) {
  auto backend = make_cpu_backend();
  const Status status = backend->load(config, golden_options(dir, config, block_size, groups_layers));
  REQUIRE_MESSAGE(status.ok(), status.message());
  return backend;
}

// All lines of a file as one batch of greedy requests, in chunks, mixed at random.
inline std::vector<Generated> answer(Backend& backend, const std::vector<nlohmann::json>& lines, const char* prompt_key,
                                     const char* output_key, int32_t num_logprobs) {
  std::vector<GenerateRequest> requests;
  for (const auto& line : lines) {
    GenerateRequest& r = requests.emplace_back();
    r.prompt = line.at(prompt_key).get<std::vector<TokenId>>();
    r.num_tokens = static_cast<int32_t>(line.at(output_key).size());
    r.sampling.num_logprobs = num_logprobs;
  }
  return generate_at_random(backend, requests, 64, 32, 1);
}

// All numbers of the answers.
inline std::string bytes_of(const std::vector<Generated>& answers) {
  std::string bytes;
  const auto add = [&](const auto& values) {
    bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof values[0]);
  };
  for (const Generated& answer : answers) {
    add(answer.tokens), add(answer.logprobs);
    for (const auto& top : answer.top_logprobs) add(top);
  }
  return bytes;
}

// Those of a model's own golden file, with 5 log-probabilities a token.
inline std::vector<Generated> golden_answers(const std::string& path, const std::vector<nlohmann::json>& lines) {
  const auto config = load_model_config(path);
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  return answer(*load_f32(path, *config, 16), lines, "prompt_token_ids", "token_ids", 5);
}

// A golden file's names for a line's prompt and its answer.
struct GoldenKeys {
  const char* prompt;
  const char* output;
};

// The greedy tokens and log probabilities of a trained model are those of the file.
inline void check_continuations(const std::string& dir, const std::string& golden, GoldenKeys keys) {
  const Result<ModelConfig> config = load_model_config(dir);
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  const auto backend = load_f32(dir, *config, 16);
  const auto lines = read_json_lines(golden);
  REQUIRE(!lines.empty());
  const auto answers = answer(*backend, lines, keys.prompt, keys.output, 0);
  for (size_t i = 0; i < lines.size(); ++i) {
    CAPTURE(i);
    CHECK(answers[i].tokens == lines[i].at(keys.output).get<std::vector<TokenId>>());
    CHECK(compare(answers[i].logprobs, lines[i].at("logprobs").get<std::vector<double>>(), 0, 1e-4) == "");
  }
}

}  // namespace llmb::test
