// Models with windows on the CPU: blocks before a window are others' at once, and no bit of an answer changes.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/cpu_ops.h"
#include "core/layer_groups.h"
#include "model/config_loader.h"
#include "tests/support/plan_builder.h"
#include "tests/support/scheduled_run.h"
#include "tests/support/scripted_proposer.h"
#include "tests/support/source_dir.h"
#include "tests/support/window_requests.h"

namespace llmb::test {
namespace {

struct Case {
  const char* model;
  size_t num_groups;
};

// Windows of 11 tokens in all layers, or in some.
constexpr Case kCases[] = {{"mistral-window", 1}, {"gemma2", 2},       {"gemma3", 4}, {"gpt_oss", 2},
                           {"phi3", 1},           {"qwen2-window", 3}, {"gemma4", 3}, {"gemma4-keys", 3}};

std::unique_ptr<Backend> load(const std::string& model, bool groups_layers, int32_t block_size, int32_t num_blocks,
                              int32_t max_num_drafts) {
  const std::string dir = source_dir() + "/data/fixtures/models/" + model;
  LoadOptions o;
  o.model_dir = dir;
  o.groups_layers = groups_layers;
  o.block_size = block_size;
  o.num_blocks_override = num_blocks;
  o.max_num_seqs = 8;
  o.max_num_batched_tokens = 64;
  o.max_num_drafts = max_num_drafts;
  o.max_model_len = 100;
  o.num_threads = 2;
  return loaded(make_cpu_backend(), load_model_config(dir).value(), o);
}

SchedulerConfig config_for(int32_t max_num_batched_tokens) {
  SchedulerConfig config;
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = max_num_batched_tokens;
  config.max_model_len = 100;
  return config;
}

TEST_CASE("windows give blocks back: the bits of one group, from pools of any size and chunks of any length") {
  int64_t num_preemptions = 0;
  for (const Case& c : kCases) {
    CAPTURE(c.model);
    const auto requests = window_requests({3, 11, 12, 30, 47, 60}, 24);
    const auto one_group = load(c.model, false, 4, 400, 0);
    const ScheduledAnswers expected = run_scheduled(*one_group, config_for(64), nullptr, requests).answers;
    for (const int32_t block_size : {4, 16}) {
      const auto ample = load(c.model, true, block_size, 400, 0);
      CHECK(ample->info().kv.groups.windows.size() == c.num_groups);
      for (const int32_t budget : {64, 9}) {
        const bool is_same = run_scheduled(*ample, config_for(budget), nullptr, requests).answers == expected;
        CHECK(is_same);
      }
    }
    const auto windows = load(c.model, true, 4, 1, 0)->info().kv.groups.windows;
    const auto small = load(c.model, true, 4, static_cast<int32_t>(max_live_blocks(windows, 21, 9, 4)), 0);
    const ScheduledRun run = run_scheduled(*small, config_for(9), nullptr, requests);
    const bool is_same = run.answers == expected;
    CHECK(is_same);
    num_preemptions += run.num_preemptions;
  }
  CHECK(num_preemptions > 0);
}

TEST_CASE("windows with choices that share blocks and drafts in trees: the same bits") {
  for (const Case& c : kCases) {
    CAPTURE(c.model);
    const auto requests = window_requests({3, 12, 30}, 20, 3);
    SchedulerConfig config = config_for(32);
    const ScheduledRun plain = run_scheduled(*load(c.model, false, 4, 400, 0), config, nullptr, requests);
    const auto answer = tokens_of(requests, plain.answers);
    ScriptedProposer proposer(answer, 60, {.propose_rate = 0.8, .right_rate = 0.7, .tree_rate = 0.7}, 2);
    config.max_num_drafts = 8;
    config.allows_trees = true;
    const ScheduledRun run = run_scheduled(*load(c.model, true, 4, 160, 8), config, &proposer, requests);
    const bool is_same = run.answers == plain.answers;
    CHECK(is_same);
    CHECK(run.num_copies > 0);
    CHECK(run.num_trees > 0);
    CHECK(run.num_given > run.num_groups);
  }
}

TEST_CASE("windows with the prefix cache: the bits of one group, from pools that evict and preempt") {
  int64_t num_preemptions = 0, num_copies = 0;
  for (const Case& c : kCases) {
    CAPTURE(c.model);
    // Twice the same rows, and rows that begin as the longest does.
    auto requests = window_requests({60, 12, 47, 60, 30}, 24);
    for (const int32_t length : {59, 43, 20, 8}) {
      auto request = std::make_shared<Request>(*requests[0]);
      request->prompt_tokens.resize(length);
      request->prompt_tokens.back() = 1;
      requests.push_back(request);
    }
    const auto one_group = load(c.model, false, 4, 400, 0);
    const ScheduledAnswers expected = run_scheduled(*one_group, config_for(64), nullptr, requests).answers;
    const auto windows = load(c.model, true, 4, 1, 0)->info().kv.groups.windows;
    const auto most = static_cast<int32_t>(max_live_blocks(windows, 21, 19, 4));
    for (const int32_t num_blocks : {400, 2 * most, most}) {
      SchedulerConfig config = config_for(19);
      config.enable_prefix_caching = true;
      const ScheduledRun run = run_scheduled(*load(c.model, true, 4, num_blocks, 0), config, nullptr, requests);
      const bool is_same = run.answers == expected;
      CHECK(is_same);
      num_preemptions += run.num_preemptions;
      num_copies += run.num_copies;
    }
  }
  CHECK(num_preemptions > 0);
  CHECK(num_copies > 0);
}

TEST_CASE("behind the last layer with keys and values of its own, steps shrink to sampled rows") {
  const ModelConfig config = load_model_config(source_dir() + "/data/fixtures/models/gemma4").value();
  KvLayout kv = make_kv_layout(config, 16, DType::kF32, group_layers(config, 0));
  kv.num_blocks = 4;
  ThreadPool pool(2);
  CpuOps ops(config, kv, KvPool(kv), 0, 100, Quantization::kNone, DType::kF32, pool);
  const std::vector<TokenId> tokens(8, 1);
  PlanBuilder mixed(16), sampled(16);
  mixed.add(tokens, 0, 5, {0}, SampleRow()).add(tokens, 0, 4, {1}, std::nullopt).add(tokens, 3, 1, {2}, SampleRow());
  sampled.add(tokens, 4, 1, {0}, SampleRow()).add(tokens, 5, 1, {1}, SampleRow());
  const auto rows = ops.allocate(10, 2, DType::kF32), out = ops.allocate(10, 2, DType::kF32);
  auto* const numbers = static_cast<float*>(rows->rows().data);
  for (int i = 0; i < 20; ++i) numbers[i] = static_cast<float>(i);

  ops.begin_step(mixed.plan());
  REQUIRE(ops.narrow_step() == 3);
  ops.keep_rows(rows->rows());
  CHECK(std::vector<float>(numbers, numbers + 6) == std::vector<float>{8, 9, 16, 17, 18, 19});
  ops.gather_sample_rows(rows->rows(), 2, out->rows());
  const auto* const gathered = static_cast<const float*>(out->rows().data);
  CHECK(std::vector<float>(gathered, gathered + 4) == std::vector<float>{8, 9, 18, 19});
  ops.begin_step(sampled.plan());
  CHECK(ops.narrow_step() == std::nullopt);
}

}  // namespace
}  // namespace llmb::test
