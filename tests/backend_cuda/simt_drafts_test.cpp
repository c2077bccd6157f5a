// Steps that draft and verify on the CUDA backend are replayed from recorded graphs, whatever their drafts are, and a draft
// model is a second backend on the same device. On the host layer, which counts calls of the runtime.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "kernels/simt/settings.h"
#include "tests/backend_cuda/counting_backend.h"
#include "tests/backend_cuda/drafted_job.h"
#include "tests/support/scheduled_run.h"
#include "tests/support/scripted_proposer.h"
#include "tests/support/source_dir.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace llmb::test {
namespace {

bool verifies(const StepPlan& plan) {
  return plan.num_samples() == plan.num_tokens() && plan.num_tokens() > plan.num_entries();
}

int32_t most_rows(const StepPlan& plan) {
  int32_t most = 0;
  for (int32_t e = 0; e < plan.num_entries(); ++e) most = std::max(most, plan.num_rows(e));
  return most;
}

struct Setup {
  ModelConfig config;
  LoadOptions load;
  SchedulerConfig scheduler;
  std::function<bool(const StepPlan&)> is_counted;

  Setup() : config(tiny_config()) {
    config.dtype = DType::kBF16;
    load.block_size = 8;
    load.num_blocks_override = 100;
    load.max_num_seqs = scheduler.max_num_seqs = 3;
    load.max_num_batched_tokens = scheduler.max_num_batched_tokens = 96;
    load.max_model_len = scheduler.max_model_len = 96;
    load.max_num_drafts = scheduler.max_num_drafts = 36;
    scheduler.max_drafts_per_group = 12;
    load.num_threads = 1;
    load.dtype = DType::kBF16;
  }

  // Compares greedy tokens with and without drafts. Where arithmetic depends on the step, a near tie may fall otherwise.
  Counts run(const ProposerScript& script) {
    const TempDir dir;
    write_model(dir.path(), config, random_tensors(config, 21));
    load.model_dir = dir.path();
    std::vector<std::shared_ptr<const Request>> requests;
    for (const int32_t length : {5, 9, 20}) {
      auto request = std::make_shared<Request>();
      for (int32_t i = 0; i < length; ++i) request->prompt_tokens.push_back((11 * i + 5 * length) % 96);
      request->rng = {3, requests.size()};
      request->params.stop.max_tokens = 60;
      request->params.stop.ignore_eos = true;
      request->params.sampling.temperature = 0;
      request->params.sampling.num_logprobs = 0;
      requests.push_back(request);
    }
    Counts counts;
    Counting backend(loaded(make_cuda_backend(0), config, load), is_counted, &counts);
    const ScheduledRun plain = run_scheduled(backend, scheduler, nullptr, requests);
    const auto answer = [&](const Request& request, int32_t) {
      for (size_t i = 0; i < requests.size(); ++i)
        if (requests[i].get() == &request) return plain.answers[i][0].out.tokens;
      return std::vector<TokenId>();
    };
    ScriptedProposer proposer(answer, config.vocab_size, script, 7);
    counts = {};
    scheduler.allows_trees = script.tree_rate > 0;
    const ScheduledRun drafted = run_scheduled(backend, scheduler, &proposer, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      const Generated &a = plain.answers[i][0].out, &b = drafted.answers[i][0].out;
      REQUIRE(a.tokens.size() == b.tokens.size());
      if (load.cuda.deterministic) CHECK(a.tokens == b.tokens);
      size_t same = 0;
      for (; same < a.tokens.size() && a.tokens[same] == b.tokens[same]; ++same)
        CHECK(std::abs(a.logprobs[same] - b.logprobs[same]) <= 0.03f);
      CHECK(same >= 10);
    }
    CHECK((drafted.num_trees > 0) == scheduler.allows_trees);
    return counts;
  }
};

TEST_CASE("steps that verify trees are replayed") {
  Setup setup;
  setup.load.cuda.deterministic = true;
  setup.is_counted = [](const StepPlan& plan) { return verifies(plan) && !plan.parent_rows.empty(); };
  check_replayed(setup.run({.propose_rate = 1, .right_rate = 0.3, .tree_rate = 0.9}), 6);
}

// Eight query heads over one of keys and values: nine rows of a sequence are more than 64 rows of attention, which on
// Hopper are another kernel's.
TEST_CASE("steps that verify long drafts are replayed, with the kernel for tall units") {
  Setup setup;
  setup.config.num_attention_heads = 8, setup.config.num_key_value_heads = 1, setup.config.head_dim = 64;
  setup.load.dtype = DType::kF16;
  setup.is_counted = [](const StepPlan& plan) { return verifies(plan) && most_rows(plan) > 8; };
  const uint64_t before = simt::num_runs("wgmma_paged_attention_kernel");
  check_replayed(setup.run({.propose_rate = 1, .right_rate = 0.5}), 6);
  CHECK(simt::num_runs("wgmma_paged_attention_kernel") > before);
}

const std::string kModelDir = source_dir() + "/data/fixtures/models/llama-gqa";

TEST_CASE("drafts by the model's first layers change no byte, and their steps are replayed") {
  EngineJobOptions o = deterministic_cuda_job(kModelDir);
  Counts counts;
  o.make_backend = [&counts]() -> std::unique_ptr<Backend> {
    return std::make_unique<Counting>(make_cuda_backend(0), [](const StepPlan& plan) { return plan.num_layers > 0; },
                                      &counts);
  };
  const SpeculationMetrics metrics = check_same_bytes(
      o, {.by = DraftBy::kLayers, .num_layers = 1, .max_tokens = 3, .max_model_len = 32, .num_blocks = 12});
  CHECK(metrics.drafters.back().num_drafted > 20);
  check_replayed(counts, 6);
}

TEST_CASE("drafts by the layer behind the last one change no byte, and their steps are replayed") {
  EngineJobOptions o = deterministic_cuda_job(source_dir() + "/data/fixtures/mtp/deepseek_v3");
  Counts counts;
  o.make_backend = [&counts]() -> std::unique_ptr<Backend> {
    return std::make_unique<Counting>(make_cuda_backend(0), [](const StepPlan& plan) { return plan.is_mtp; }, &counts);
  };
  const SpeculationMetrics metrics = check_same_bytes(
      o, {.by = DraftBy::kLayers, .num_layers = 0, .max_tokens = 3, .max_model_len = 32, .num_blocks = 12});
  CHECK(metrics.drafters.back().num_drafted > 20);
  check_replayed(counts, 6);
}

TEST_CASE("drafts by a second model on the same device change no byte") {
  const SpeculationMetrics metrics = check_same_bytes(
      deterministic_cuda_job(kModelDir), {.model = "/data/fixtures/models/llama-gqa",
                                          .make_backend = [] { return make_cuda_backend(0); },
                                          .max_tokens = 3,
                                          .max_model_len = 32,
                                          .num_blocks = 12,
                                          .max_num_batched_tokens = 16});
  // It is the same model, in another arithmetic.
  CHECK(metrics.drafters.back().num_drafted > 20);
  CHECK(metrics.drafters.back().num_accepted > metrics.drafters.back().num_drafted / 2);
}

}  // namespace
}  // namespace llmb::test
