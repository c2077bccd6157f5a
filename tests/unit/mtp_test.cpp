// The layer behind the last one on the CPU: its definition's tokens, however prompts are cut and blocks are shared.
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/hidden_rows.h"
#include "base/thread_pool.h"
#include "model/config_loader.h"
#include "tests/support/check_ok.h"
#include "tests/support/draft_layer_ranks.h"
#include "tests/support/draft_layer_trial.h"
#include "tests/support/golden.h"
#include "tests/support/plan_builder.h"

namespace llmb::test {

namespace {

std::vector<std::string> mtp_models() {
  std::vector<std::string> dirs;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() + "/data/fixtures/mtp"))
    dirs.push_back(entry.path().string());
  REQUIRE(dirs.size() >= 4);
  return dirs;
}

ModelConfig config_of(const std::string& dir) {
  Result<ModelConfig> config = load_model_config(dir);
  REQUIRE(config.ok());
  REQUIRE(config->mtp.is_known);
  config->mtp.is_used = true;
  return *config;
}

}  // namespace

TEST_CASE("the layer behind the last one gives its definition's best tokens, one behind the other") {
  for (const std::string& dir : mtp_models()) {
    CAPTURE(dir);
    const ModelConfig config = config_of(dir);
    const auto lines = read_json_lines(dir + "/golden.jsonl");
    for (const int32_t block_size : {4, 16}) {
      CAPTURE(block_size);
      const auto backend = loaded(make_cpu_backend(), config, draft_layer_options(dir, block_size));
      check_draft_layer(*backend, lines);
    }
  }
}

TEST_CASE("over ranks of every kind the layer gives its definition's best tokens, too") {
  for (const std::string& dir : mtp_models()) {
    CAPTURE(dir);
    const ModelConfig config = config_of(dir);
    check_draft_layer_over_ranks(config, draft_layer_options(dir, 4), read_json_lines(dir + "/golden.jsonl"));
  }
}

TEST_CASE("blocks that another sequence filled hold what the layer needs, also a part of one") {
  const std::string dir = source_dir() + "/data/fixtures/mtp/glm4_moe";
  const auto backend = loaded(make_cpu_backend(), config_of(dir), draft_layer_options(dir, 4));
  for (const nlohmann::json& line : read_json_lines(dir + "/golden.jsonl")) {
    const auto length = static_cast<int32_t>(line["prompt_token_ids"].size());
    for (const int32_t first : {1, 3, 4, 7, 8, length - 1}) {
      if (first < 1 || first >= length) continue;
      DraftLayerTrial(*backend, line, 64).read_prompt();
      DraftLayerTrial second(*backend, line, 64);
      second.read_prompt(first);
      second.check_guesses(false);
    }
  }
}

TEST_CASE("nothing is loaded, kept or run of a layer behind the last one unless it is used") {
  const std::string dir = source_dir() + "/data/fixtures/mtp/glm4_moe";
  ModelConfig config = config_of(dir);
  const auto with = loaded(make_cpu_backend(), config, draft_layer_options(dir, 4));
  config.mtp.is_used = false;
  const auto without = loaded(make_cpu_backend(), config, draft_layer_options(dir, 4));
  CHECK(!without->info().has_mtp);
  CHECK(without->info().weight_bytes < with->info().weight_bytes);
  CHECK(without->info().kv.num_layers == config.num_hidden_layers);
  CHECK(without->info().kv.hidden_size == 0);
  const int64_t of_layer = 2 * config.kv_size() * 4, of_hidden = config.hidden_size * 4;
  CHECK(with->info().kv.bytes_per_token() == without->info().kv.bytes_per_token() + of_layer + of_hidden);
  PlanBuilder builder(4);
  builder.add({1, 2}, 1, 1, {0}, SampleRow());
  StepPlan plan = builder.plan();
  plan.is_mtp = true;
  CHECK(!without->submit(plan).ok());
  CHECK(with->submit(plan).ok());
  StepOutput output;
  check_ok(with->wait(&output));
}

TEST_CASE("hidden states are kept by slot, in the cache's precision, and go where blocks are copied") {
  constexpr int32_t kSize = 5, kBlockSize = 3, kBlocks = 4;
  ThreadPool pool(2);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8}) {
    KvLayout layout{.num_layers = 1, .num_kv_heads = 1, .head_dim = 2, .block_size = kBlockSize, .num_blocks = kBlocks};
    layout.dtype = dtype;
    layout.hidden_size = kSize;
    HiddenRows rows(layout), others(layout);
    std::vector<float> x, read(4 * kSize, 7.0f);
    for (int32_t i = 0; i < 3 * kSize; ++i) x.push_back(static_cast<float>(i) - 6.25f);  // exact in bf16
    const std::vector<int32_t> slots = {11, 0, 4}, asked = {4, -1, 11, 0};
    rows.store(x.data(), slots.data(), 3, pool);
    rows.load(asked.data(), 4, read.data(), pool);
    const auto row = [&](const std::vector<float>& from, int32_t i) {
      return std::vector<float>(from.begin() + i * kSize, from.begin() + (i + 1) * kSize);
    };
    CHECK(row(read, 0) == row(x, 2));
    CHECK(row(read, 1) == std::vector<float>(kSize, 0.0f));
    CHECK(row(read, 2) == row(x, 0));
    CHECK(row(read, 3) == row(x, 1));
    const std::vector<BlockCopy> copies = {{0, 3, 1}, {0, 0, 2}};
    rows.copy_blocks_to(others, copies, pool);
    const std::vector<int32_t> copied = {5, 6};
    others.load(copied.data(), 2, read.data(), pool);
    CHECK(row(read, 0) == row(x, 0));
    CHECK(row(read, 1) == row(x, 1));
  }
}

TEST_CASE("a plan of the layer has one row an entry, and none of a sequence's first token") {
  PlanBuilder builder(4);
  builder.add({1, 2, 3}, 2, 1, {0}, SampleRow()).add({1, 2}, 1, 1, {1}, SampleRow());
  StepPlan plan = builder.plan(), first = plan, two_rows = plan;
  for (StepPlan* const p : {&plan, &first, &two_rows}) p->is_mtp = true;
  CHECK(validate_step_plan(plan, 2).message() == "");
  first.entries[1].base = 0;
  two_rows.tokens.push_back(3);
  two_rows.query_start.back() = two_rows.num_tokens();
  two_rows.sample_rows.back().token_row = 2;
  for (const StepPlan* const p : {&first, &two_rows})
    CHECK(validate_step_plan(*p, 2).message().find("invariant 13 ") != std::string::npos);
  plan.clear();
  CHECK(!plan.is_mtp);
}

TEST_CASE("the slot before a row's: in its table, in its entry, or its parent's") {
  PlanBuilder builder(4);
  const std::vector<TokenId> tokens(12, 1);
  builder.add(tokens, 0, 3, {5}, std::nullopt).add(tokens, 4, 2, {7, 2}, std::nullopt);
  builder.add(tokens, 6, 4, {1, 3, 4}, std::nullopt);
  StepPlan plan = builder.plan();
  ResolvedStep step;
  std::vector<int32_t> slots;
  resolve_step(plan, {}, &step);
  find_previous_slots(plan, step, 0, &slots);
  CHECK(slots == std::vector<int32_t>{-1, 20, 21, 31, 8, 13, 14, 15, 16});
  plan.parent_rows = {-1, 0, 1, 2, 3, 4, 5, 5, 7};
  resolve_step(plan, {}, &step);
  find_previous_slots(plan, step, 0, &slots);
  CHECK(slots == std::vector<int32_t>{-1, 20, 21, 31, 8, 13, 14, 14, 16});
}

}  // namespace llmb::test
