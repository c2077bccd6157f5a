// Models with known answers: what Hugging Face transformers says about tiny models of each supported shape
// (tools/golden/make_golden_models.py) and about the bundled one (make_golden_bundled.py).
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/layer_groups.h"
#include "model/config_loader.h"
#include "tests/support/compare.h"
#include "tests/support/golden.h"
#include "tests/support/oracle.h"
#include "tests/support/plan_builder.h"
#include "tests/support/scheduled_run.h"
#include "tests/support/source_dir.h"
#include "tests/support/window_requests.h"
#include "tests/unit/golden_answers.h"

namespace llmb::test {
namespace {

namespace fs = std::filesystem;

// The error of log probabilities that the reference's rounding allows: fp32, and angles of rope in fp32 too.
constexpr double kTolerance = 5e-5;
// With recurrent states, whose outputs are normed however small they are, the reference itself is up to 1.4e-4 from fp64.
constexpr double kStateTolerance = 2e-4;

// Log probabilities from logits.
std::vector<double> log_softmax(std::vector<double> logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double l : logits) sum += std::exp(l - top);
  for (double& l : logits) l -= top + std::log(sum);
  return logits;
}

// The expected best tokens of a step are the backend's, each with its log probability.
void check_top(const nlohmann::json& expected, const std::vector<TokenId>& tokens, const std::vector<float>& logprobs,
               double tolerance) {
  REQUIRE(tokens.size() >= expected.size());
  for (size_t k = 0; k < expected.size(); ++k) {
    const auto at = std::find(tokens.begin(), tokens.end(), expected[k][0].get<TokenId>());
    REQUIRE(at != tokens.end());
    CHECK(std::fabs(logprobs[at - tokens.begin()] - expected[k][1].get<double>()) <= tolerance);
    // In order, but for neighbours that are as good as equal.
    CHECK(std::fabs(logprobs[k] - expected[k][1].get<double>()) <= tolerance);
  }
}

// Checks the prediction after every position of a prompt: its beginnings, each a request of its own.
void check_every_position(Backend& backend, const nlohmann::json& line, int32_t vocab_size, double tolerance) {
  const auto prompt = line.at("prompt_token_ids").get<std::vector<TokenId>>();
  const nlohmann::json& expected = line.at("prompt_top_logprobs");
  std::vector<GenerateRequest> requests;
  for (size_t n = 1; n <= prompt.size(); ++n) {
    GenerateRequest& r = requests.emplace_back();
    r.prompt.assign(prompt.begin(), prompt.begin() + static_cast<int64_t>(n));
    r.sampling.num_logprobs = vocab_size;
  }
  const auto answers = generate_at_random(backend, requests, 64, 32, 2);
  for (size_t n = 0; n < answers.size(); ++n) {
    CAPTURE(n);
    check_top(expected[n], answers[n].top_tokens[0], answers[n].top_logprobs[0], tolerance);
  }
}

void check_model(const std::string& dir, const ModelConfig& config, int32_t block_size, bool groups_layers) {
  const double tolerance = config.has_states() ? kStateTolerance : kTolerance;
  const auto backend = load_f32(dir, config, block_size, groups_layers);
  const auto lines = read_json_lines(dir + "/golden.jsonl");
  const auto answers = answer(*backend, lines, "prompt_token_ids", "token_ids", config.vocab_size);
  for (size_t i = 0; i < lines.size(); ++i) {
    CAPTURE(i);
    CHECK(answers[i].tokens == lines[i].at("token_ids").get<std::vector<TokenId>>());
    CHECK(compare(answers[i].logprobs, lines[i].at("logprobs").get<std::vector<double>>(), 0, tolerance) == "");
    for (size_t step = 0; step < answers[i].tokens.size(); ++step)
      check_top(lines[i].at("top_logprobs")[step], answers[i].top_tokens[step], answers[i].top_logprobs[step],
                tolerance);
    if (lines[i].contains("prompt_top_logprobs"))
      check_every_position(*backend, lines[i], config.vocab_size, tolerance);
    if (!lines[i].contains("last_prompt_logits")) continue;
    const auto expected = log_softmax(lines[i]["last_prompt_logits"].get<std::vector<double>>());
    std::vector<float> actual(expected.size(), NAN);
    for (size_t k = 0; k < expected.size(); ++k) actual.at(answers[i].top_tokens[0][k]) = answers[i].top_logprobs[0][k];
    CHECK(compare(actual, expected, 0, tolerance) == "");
  }
}

TEST_CASE("greedy tokens, log probabilities and logits equal Hugging Face transformers") {
  const auto dirs = golden_model_dirs();
  REQUIRE(dirs.size() >= 10);
  for (const std::string& dir : dirs) {
    CAPTURE(dir);
    const Result<ModelConfig> config = load_model_config(dir);
    REQUIRE_MESSAGE(config.ok(), config.status().message());
    for (const int32_t block_size : {16, 4}) check_model(dir, *config, block_size, block_size == 4);
  }
}

TEST_CASE("of every architecture, the bits of an answer do not depend on the schedule") {
  for (const std::string& dir : golden_model_dirs()) {
    CAPTURE(dir);
    const ModelConfig config = load_model_config(dir).value();
    const auto backend = load_f32(dir, config, 4);
    std::vector<GenerateRequest> requests;
    for (const auto& line : read_json_lines(dir + "/golden.jsonl")) {
      GenerateRequest& r = requests.emplace_back();
      r.prompt = line.at("prompt_token_ids").get<std::vector<TokenId>>();
      r.num_tokens = 8;
      r.sampling.num_logprobs = 3;
    }
    const auto expected = generate_one_by_one(*backend, requests, 64);
    const bool is_same = expected == generate_at_random(*backend, requests, 23, 5, 3);
    CHECK(is_same);
    if (config.layers.empty()) continue;
    const auto grouped = load_f32(dir, config, 4, true);
    const bool is_same_in_groups = expected == generate_at_random(*grouped, requests, 23, 5, 4);
    CHECK(is_same_in_groups);
  }
}

// Two choices each; two prompts begin alike, and one is there twice.
std::vector<std::shared_ptr<const Request>> sharing_requests() {
  auto requests = window_requests({21, 13, 21}, 10, 2);
  auto request = std::make_shared<Request>(*requests[0]);
  request->prompt_tokens.resize(17);
  request->prompt_tokens.back() = 1;
  requests.push_back(request);
  return requests;
}

TEST_CASE("of every architecture, the bits of an answer do not depend on shared prefixes and preemption") {
  int64_t num_preemptions = 0;
  for (const std::string& dir : golden_model_dirs()) {
    CAPTURE(dir);
    const ModelConfig config = load_model_config(dir).value();
    const auto run = [&](bool is_crowded) {
      LoadOptions options = golden_options(dir, config, 4, /*groups_layers=*/is_crowded);
      options.max_num_seqs = 8;
      options.num_blocks_override = 100;
      auto backend = loaded(make_cpu_backend(), config, options);
      if (is_crowded) {  // what one choice may need, twice
        const std::vector<int32_t> windows = backend->info().kv.groups.windows;
        options.num_blocks_override = static_cast<int32_t>(2 * max_live_blocks(windows, 8, 23, 4));
        backend = loaded(make_cpu_backend(), config, options);
      }
      SchedulerConfig scheduling;
      scheduling.max_num_seqs = is_crowded ? 8 : 1;
      scheduling.max_num_batched_tokens = is_crowded ? 23 : 64;
      scheduling.max_model_len = std::min(config.max_position_embeddings, 40);
      scheduling.enable_prefix_caching = is_crowded;
      return run_scheduled(*backend, scheduling, nullptr, sharing_requests());
    };
    const ScheduledRun crowded = run(true);
    const bool is_same = crowded.answers == run(false).answers;
    CHECK(is_same);
    num_preemptions += crowded.num_preemptions;
  }
  CHECK(num_preemptions > 20);
}

// The oracle is a Llama without windows, and knows the rope scalings of its time.
bool oracle_knows(const ModelConfig& c) {
  const bool is_llama = c.model_type == "llama" || c.model_type == "qwen2" || c.model_type == "mistral";
  return is_llama && c.layers.empty() && c.ropes[0].scaling.kind <= RopeScalingKind::kLlama3;
}

TEST_CASE("the oracle itself agrees with Hugging Face transformers") {
  for (const std::string& dir : golden_model_dirs()) {
    CAPTURE(dir);
    const ModelConfig config = load_model_config(dir).value();
    if (!oracle_knows(config)) continue;
    const Oracle oracle(config, read_tensors(dir));
    const auto lines = read_json_lines(dir + "/golden.jsonl");
    const auto& line = lines.back();
    const auto prompt = line.at("prompt_token_ids").get<std::vector<TokenId>>();
    const auto expected = line.at("token_ids").get<std::vector<TokenId>>();
    auto tokens = prompt;
    tokens.insert(tokens.end(), expected.begin(), expected.end() - 1);
    const auto log_probs = oracle.log_probs(tokens);
    for (size_t step = 0; step < expected.size(); ++step) {
      const auto& row = log_probs[prompt.size() - 1 + step];
      CHECK(std::max_element(row.begin(), row.end()) - row.begin() == expected[step]);
      CHECK(std::fabs(row[expected[step]] - line.at("logprobs")[step].get<double>()) <= 3e-5);
    }
  }
}

TEST_CASE("the bundled model: greedy tokens and log probabilities equal Hugging Face transformers") {
  check_continuations(source_dir() + "/data/model", source_dir() + "/data/fixtures/model-bundled.jsonl",
                      {"prompt_token_ids", "token_ids"});
}

}  // namespace
}  // namespace llmb::test
