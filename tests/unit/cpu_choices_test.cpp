// Several answers to a prompt on the CPU backend: each has the bits that it has alone, though they share blocks.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "tests/support/plan_builder.h"
#include "tests/support/scheduled_run.h"
#include "tests/support/scripted_proposer.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace llmb::test {
namespace {

constexpr int32_t kMaxModelLen = 96, kMaxTokens = 40;

class Model {
 public:
  explicit Model(DType kv_dtype) : kv_dtype_(kv_dtype) {
    config.dtype = DType::kBF16;
    write_model(dir_.path(), config, random_tensors(config, 21));
  }
  std::unique_ptr<Backend> load(int32_t block_size, int32_t num_blocks, int32_t max_num_seqs) const {
    LoadOptions o;
    o.model_dir = dir_.path();
    o.block_size = block_size;
    o.num_blocks_override = num_blocks;
    o.max_num_seqs = max_num_seqs;
    o.max_num_batched_tokens = kMaxTokens;
    o.max_num_drafts = 10;
    o.max_model_len = kMaxModelLen;
    o.num_threads = 2;
    o.kv_cache_dtype = kv_dtype_;
    return loaded(make_cpu_backend(), config, o);
  }

  ModelConfig config = tiny_config();

 private:
  const DType kv_dtype_;
  const TempDir dir_;
};

SchedulerConfig config_for(int32_t max_num_seqs) {
  SchedulerConfig config;
  config.max_num_seqs = max_num_seqs;
  config.max_num_batched_tokens = kMaxTokens;
  config.max_model_len = kMaxModelLen;
  return config;
}

TEST_CASE("choices that part before, on and behind a block's border: the tokens and log probabilities of each alone") {
  for (const DType kv_dtype : {DType::kF32, DType::kBF16, DType::kI8, DType::kF8}) {
    CAPTURE(static_cast<int>(kv_dtype));
    const Model model(kv_dtype);
    for (const int32_t block_size : {16, 5}) {
      CAPTURE(block_size);
      const auto backend = model.load(block_size, 400, 12);
      std::vector<std::shared_ptr<const Request>> requests;
      for (const int32_t length :
           {1, block_size - 1, block_size, block_size + 1, 3 * block_size - 1, 3 * block_size, 3 * block_size + 1})
        requests.push_back(request_with_choices(length, 2 + length % 3, 2 * block_size + 1));
      const ScheduledAnswers expected = choices_alone(*backend, requests, kMaxTokens);
      CHECK(expected[0][0].out.tokens != expected[0][1].out.tokens);
      for (const int32_t max_num_seqs : {12, 3}) {
        const ScheduledRun run = run_scheduled(*backend, config_for(max_num_seqs), nullptr, requests);
        const bool same = run.answers == expected;
        CHECK(same);
        CHECK(run.num_copies > 0);
        CHECK(run.num_shared_rows > 0);
      }
    }
  }
}

TEST_CASE("a pool that preempts, and drafts, change nothing") {
  const Model model(DType::kBF16);
  const auto backend = model.load(4, 400, 8), small = model.load(4, 26, 8);
  std::vector<std::shared_ptr<const Request>> requests;
  for (const int32_t length : {3, 4, 5, 21, 36}) requests.push_back(request_with_choices(length, 3, 25));
  const ScheduledAnswers expected = choices_alone(*backend, requests, kMaxTokens);
  const auto answer = tokens_of(requests, expected);
  int64_t num_preemptions = 0;
  for (Backend* pool : {backend.get(), small.get()})
    for (const double tree_rate : {-1.0, 0.0, 0.7}) {
      SchedulerConfig config = config_for(8);
      config.max_num_drafts = tree_rate < 0 ? 0 : 10;
      config.allows_trees = tree_rate > 0;
      ScriptedProposer proposer(answer, 96, {.propose_rate = 0.8, .right_rate = 0.7, .tree_rate = tree_rate}, 2);
      const ScheduledRun run = run_scheduled(*pool, config, &proposer, requests);
      const bool same = run.answers == expected;
      CHECK(same);
      CHECK(run.num_copies > 0);
      CHECK((run.num_trees > 0) == (tree_rate > 0));
      num_preemptions += run.num_preemptions;
    }
  CHECK(num_preemptions > 0);
}

TEST_CASE("more sample rows than tokens: many choices of a prompt of one token, beside drafts") {
  const Model model(DType::kBF16);
  const auto backend = model.load(16, 200, 30);
  const std::vector<std::shared_ptr<const Request>> requests = {request_with_choices(1, 30, 3)};
  const ScheduledAnswers expected = choices_alone(*backend, requests, kMaxTokens);
  const bool same = run_scheduled(*backend, config_for(30), nullptr, requests).answers == expected;
  CHECK(same);
}

TEST_CASE("a group of the k best gives what log probabilities say, best first, and nothing where logits are NaN") {
  const Model model(DType::kBF16);
  const auto backend = model.load(16, 8, 4);
  const std::vector<TokenId> prompt = {4, 5, 6, 7};
  StepPlan plan = PlanBuilder(16).add(prompt, 0, 4, {0}, SampleRow{.num_logprobs = 6}).plan();
  StepOutput sampled, best;
  REQUIRE(backend->submit(plan).ok());
  REQUIRE(backend->wait(&sampled).ok());
  plan.groups[0].mode = SampleMode::kBest;
  REQUIRE(backend->submit(plan).ok());
  REQUIRE(backend->wait(&best).ok());
  CHECK(best.token_start == std::vector<int32_t>{0, 6});
  CHECK(best.tokens == sampled.top_tokens);
  CHECK(best.logprobs == sampled.top_logprobs);
  CHECK(std::is_sorted(best.logprobs.rbegin(), best.logprobs.rend()));
  CHECK(best.top_tokens.empty());
}

}  // namespace
}  // namespace llmb::test
