// Drafts over every kind of attention that the golden models have: chains and trees give the bits that one token a step
// gives.
#include <doctest/doctest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "model/config_loader.h"
#include "tests/support/golden.h"
#include "tests/support/scheduled_run.h"
#include "tests/support/scripted_proposer.h"

namespace llmb::test {
namespace {

constexpr int32_t kMaxModelLen = 60;

std::unique_ptr<Backend> load(const std::string& dir, const ModelConfig& config, int32_t block_size) {
  LoadOptions options;
  options.model_dir = dir;
  options.block_size = block_size;
  options.max_num_seqs = 4;
  options.max_num_batched_tokens = 48;
  options.max_num_drafts = 16;
  options.max_model_len = std::min(kMaxModelLen, config.max_position_embeddings);
  options.num_threads = 2;
  return loaded(make_cpu_backend(), config, options);
}

std::vector<std::shared_ptr<const Request>> requests_for(const std::string& dir, int32_t max_model_len) {
  std::vector<std::shared_ptr<const Request>> requests;
  for (const auto& line : read_json_lines(dir + "/golden.jsonl")) {
    auto request = std::make_shared<Request>();
    request->prompt_tokens = line.at("prompt_token_ids").get<std::vector<TokenId>>();
    const auto num_prompt = static_cast<int32_t>(request->prompt_tokens.size());
    if (num_prompt + 2 > max_model_len) continue;
    SamplingParams& sampling = request->params.sampling;
    sampling.temperature = requests.size() % 2 == 0 ? 0.0f : 1.0f;
    sampling.num_logprobs = 4;
    if (requests.size() % 3 == 2) sampling.frequency_penalty = 0.7f;
    request->rng = {7, requests.size()};
    request->params.stop.max_tokens = std::min(18, max_model_len - num_prompt);
    request->params.stop.ignore_eos = true;
    requests.push_back(std::move(request));
    if (requests.size() == 4) break;
  }
  return requests;
}

SchedulerConfig scheduler_config(int32_t max_model_len, int32_t max_num_seqs, int32_t max_num_drafts) {
  SchedulerConfig config;
  config.max_num_seqs = max_num_seqs;
  config.max_num_batched_tokens = 48;
  config.max_model_len = max_model_len;
  config.max_num_drafts = max_num_drafts;
  config.allows_trees = true;
  return config;
}

TEST_CASE("tokens and log probabilities of every golden model are those without drafts") {
  const std::vector<std::string> dirs = golden_model_dirs();
  REQUIRE(dirs.size() > 40);
  int64_t num_trees = 0, num_accepted = 0, num_verifying_trees = 0;
  for (const std::string& dir : dirs) {
    CAPTURE(dir);
    const ModelConfig config = load_model_config(dir).value();
    const int32_t max_model_len = std::min(kMaxModelLen, config.max_position_embeddings);
    const auto requests = requests_for(dir, max_model_len);
    REQUIRE(!requests.empty());
    const auto plain_backend = load(dir, config, 16);
    const ScheduledAnswers expected =
        run_scheduled(*plain_backend, scheduler_config(max_model_len, 1, 0), nullptr, requests).answers;
    const auto answer = tokens_of(requests, expected);
    const auto small_blocks = load(dir, config, 3);
    num_verifying_trees += plain_backend->info().verifies_trees;
    for (const double tree_rate : {0.0, 1.0}) {
      CAPTURE(tree_rate);
      ScriptedProposer proposer(answer, config.vocab_size,
                                {.propose_rate = 1, .right_rate = 0.8, .tree_rate = tree_rate}, 3);
      for (Backend* backend : {plain_backend.get(), small_blocks.get()}) {
        const ScheduledRun run = run_scheduled(*backend, scheduler_config(max_model_len, 4, 16), &proposer, requests);
        const bool same = run.answers == expected;
        CHECK(same);
        num_trees += run.num_trees;
        num_accepted += run.num_given - run.num_groups;
      }
    }
  }
  CHECK(num_verifying_trees > 40);
  CHECK(num_trees > 20 * num_verifying_trees);
  CHECK(num_accepted > 40 * static_cast<int64_t>(dirs.size()));
}

}  // namespace
}  // namespace llmb::test
