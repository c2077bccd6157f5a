// Groups that share rows and blocks on the CUDA backend: several answers to a prompt, the k best, copied blocks.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "tests/support/plan_builder.h"
#include "tests/support/scheduled_run.h"
#include "tests/support/scripted_proposer.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace llmb::test {
namespace {

constexpr int32_t kMaxModelLen = 80, kMaxTokens = 40;

class Model {
 public:
  Model() {
    config.dtype = DType::kBF16;
    write_model(dir_.path(), config, random_tensors(config, 21));
  }
  std::unique_ptr<Backend> load(DType dtype, int32_t block_size, int32_t num_blocks, int32_t max_num_seqs) const {
    LoadOptions o;
    o.model_dir = dir_.path();
    o.block_size = block_size;
    o.num_blocks_override = num_blocks;
    o.max_num_seqs = max_num_seqs;
    o.max_num_batched_tokens = kMaxTokens;
    o.max_num_drafts = 10;
    o.max_model_len = kMaxModelLen;
    o.num_threads = 1;
    o.dtype = dtype;
    o.cuda.deterministic = true;
    return loaded(make_cuda_backend(0), config, o);
  }

  ModelConfig config = tiny_config();

 private:
  const TempDir dir_;
};

SchedulerConfig config_for(int32_t max_num_seqs) {
  SchedulerConfig config;
  config.max_num_seqs = max_num_seqs;
  config.max_num_batched_tokens = kMaxTokens;
  config.max_model_len = kMaxModelLen;
  return config;
}

TEST_CASE("choices that part before, on and behind a block's border: the bits of each alone") {
  const Model model;
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    CAPTURE(dtype_name(dtype));
    const auto backend = model.load(dtype, 8, 300, 9);
    std::vector<std::shared_ptr<const Request>> requests;
    for (const int32_t length : {1, 7, 8, 9, 23, 24, 25})
      requests.push_back(request_with_choices(length, 2 + length % 2, 11));
    const ScheduledAnswers expected = choices_alone(*backend, requests, kMaxTokens);
    CHECK(expected[0][0].out.tokens != expected[0][1].out.tokens);
    for (const int32_t max_num_seqs : {9, 3}) {
      const ScheduledRun run = run_scheduled(*backend, config_for(max_num_seqs), nullptr, requests);
      const bool same = run.answers == expected;
      CHECK(same);
      CHECK(run.num_copies > 0);
      CHECK(run.num_shared_rows > 0);
    }
  }
}

TEST_CASE("choices with drafts in chains and trees, from a pool that preempts: the same bits") {
  const Model model;
  const auto backend = model.load(DType::kBF16, 8, 300, 8), small = model.load(DType::kBF16, 8, 10, 8);
  std::vector<std::shared_ptr<const Request>> requests;
  for (const int32_t length : {3, 9, 21}) requests.push_back(request_with_choices(length, 3, 16));
  const ScheduledAnswers expected = choices_alone(*backend, requests, kMaxTokens);
  const auto answer = tokens_of(requests, expected);
  int64_t num_preemptions = 0;
  for (Backend* pool : {backend.get(), small.get()})
    for (const double tree_rate : {0.0, 0.7}) {
      SchedulerConfig config = config_for(8);
      config.max_num_drafts = 10;
      config.allows_trees = tree_rate > 0;
      ScriptedProposer proposer(answer, 96, {.propose_rate = 0.8, .right_rate = 0.7, .tree_rate = tree_rate}, 2);
      const ScheduledRun run = run_scheduled(*pool, config, &proposer, requests);
      const bool same = run.answers == expected;
      CHECK(same);
      CHECK(run.num_copies > 0);
      num_preemptions += run.num_preemptions;
    }
  CHECK(num_preemptions > 0);
}

StepOutput output_of(Backend& backend, const StepPlan& plan) {
  StepOutput output;
  const Status submitted = backend.submit(plan);
  REQUIRE_MESSAGE(submitted.ok(), submitted.message());
  REQUIRE(backend.wait(&output).ok());
  return output;
}

TEST_CASE("a group of the k best gives what log probabilities say, best first, recorded or not") {
  const Model model;
  const auto backend = model.load(DType::kBF16, 8, 8, 4);
  const std::vector<TokenId> prompt = {4, 5, 6, 7};
  for (const int32_t num_computed : {0, 3}) {  // the second is a decode step
    CAPTURE(num_computed);
    const auto query_len = static_cast<int32_t>(prompt.size()) - num_computed;
    StepPlan plan = PlanBuilder(8).add(prompt, num_computed, query_len, {0}, SampleRow{.num_logprobs = 20}).plan();
    const StepOutput sampled = output_of(*backend, plan);
    plan.groups[0].mode = SampleMode::kBest;
    const StepOutput best = output_of(*backend, plan);
    CHECK(best.token_start == std::vector<int32_t>{0, 20});
    CHECK(best.tokens == sampled.top_tokens);
    CHECK(best.logprobs == sampled.top_logprobs);
    CHECK(best.tokens[0] == sampled.tokens[0]);
    CHECK(std::is_sorted(best.logprobs.rbegin(), best.logprobs.rend()));
    CHECK(best.top_tokens.empty());
    // More than a request may list, for wide beams; and more than there are.
    for (const int32_t wanted : {21, 60, 288}) {
      plan.sample_rows[0].num_logprobs = wanted;
      const StepOutput wide = output_of(*backend, plan);
      REQUIRE(static_cast<int32_t>(wide.tokens.size()) == std::min(wanted, model.config.vocab_size));
      CHECK(std::equal(best.tokens.begin(), best.tokens.end(), wide.tokens.begin()));
      CHECK(std::equal(best.logprobs.begin(), best.logprobs.end(), wide.logprobs.begin()));
      CHECK(std::is_sorted(wide.logprobs.rbegin(), wide.logprobs.rend()));
      CHECK(std::set<TokenId>(wide.tokens.begin(), wide.tokens.end()).size() == wide.tokens.size());
    }
  }
}

// Copies run before the step: what it reads from the copy is what stood in the original, in every layer.
TEST_CASE("a sequence goes on in copies of its blocks as in the blocks themselves") {
  const Model model;
  const auto backend = model.load(DType::kBF16, 8, 12, 4);
  const std::vector<TokenId> tokens = {4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
  const SampleRow row{.num_logprobs = 5};
  output_of(*backend, PlanBuilder(8).add(tokens, 0, 10, {3, 5}, row).plan());
  const StepOutput expected = output_of(*backend, PlanBuilder(8).add(tokens, 10, 1, {3, 5}, row).plan());
  StepPlan plan = PlanBuilder(8).add(tokens, 10, 1, {9, 1}, row).add(tokens, 10, 1, {3, 11}, row).plan();
  plan.block_copies = {{0, 5, 1}, {0, 3, 9}, {0, 5, 11}};
  const StepOutput copied = output_of(*backend, plan);
  for (const size_t i : {0, 1}) {
    CHECK(copied.tokens[i] == expected.tokens[0]);
    CHECK(copied.logprobs[i] == expected.logprobs[0]);
    CHECK(std::equal(expected.top_logprobs.begin(), expected.top_logprobs.end(),
                     copied.top_logprobs.begin() + static_cast<std::ptrdiff_t>(5 * i)));
  }
  // As many as a step can have; one more is refused.
  plan.block_copies.clear();
  for (BlockId block = 0; block < 4; ++block) plan.block_copies.push_back({0, 5, block == 3 ? 10 : block});
  plan.block_copies.insert(plan.block_copies.end(), {{0, 5, 4}, {0, 5, 6}, {0, 5, 7}, {0, 5, 8}});
  output_of(*backend, plan);
}

TEST_CASE("plans that this backend was not loaded for are refused") {
  const Model model;
  const auto backend = model.load(DType::kBF16, 8, 40, 2);
  CHECK(backend->info().max_drafts_per_group == 10);
  CHECK(backend->info().verifies_trees);
  CHECK(backend->info().copies_blocks);
  const std::vector<TokenId> tokens = {4, 5, 6};
  StepPlan plan = PlanBuilder(8).add(tokens, 0, 3, {0}, SampleRow()).plan();
  for (BlockId block = 1; block <= 5; ++block) plan.block_copies.push_back({0, 0, block});
  CHECK(backend->submit(plan).code() == StatusCode::kInternal);
  plan.block_copies.pop_back();
  CHECK(output_of(*backend, plan).tokens.size() == 1);
  plan.sample_rows[0].num_logprobs = 289;
  CHECK(backend->submit(plan).code() == StatusCode::kInternal);
}

}  // namespace
}  // namespace llmb::test
