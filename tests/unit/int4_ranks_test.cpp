// Ranks that share out rows, and those that divide positions, over an int4 cache: the bytes of one rank. Each has the
// groups that are open; a closed one is stored by whoever has its positions.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/kv_layout.h"
#include "core/rank_part.h"
#include "model/config_loader.h"
#include "tests/support/narrow_room.h"
#include "tests/support/scheduled_run.h"
#include "tests/support/scripted_proposer.h"
#include "tests/support/source_dir.h"
#include "tests/support/thread_ranks.h"
#include "tests/unit/golden_answers.h"

namespace llmb::test {
namespace {

constexpr int32_t kMaxModelLen = 1088;

struct Grid {
  int32_t tensor_size, num_stages, context_size;
  bool divides_kv;

  int32_t block_size() const { return divides_kv ? context_size * kSliceTokens : kKvGroup; }
};

constexpr Grid kGrids[] = {{1, 1, 2, false}, {1, 1, 3, false}, {1, 2, 2, false},
                           {1, 1, 2, true},  {1, 1, 3, true},  {1, 2, 2, true}};

std::string model_dir(const std::string& name) { return source_dir() + "/data/fixtures/models/" + name; }

ModelConfig long_config(const std::string& name) {
  auto config = load_model_config(model_dir(name));
  REQUIRE(config.ok());
  config->max_position_embeddings = kMaxModelLen;
  return *config;
}

LoadOptions options_of(const std::string& name, const ModelConfig& config, int32_t block_size) {
  LoadOptions options = golden_options(model_dir(name), config, block_size, /*groups_layers=*/true);
  options.max_num_batched_tokens = 300;
  options.max_num_drafts = 96;
  options.num_threads = 1;
  options.kv_cache_dtype = DType::kI4;
  return options;
}

std::unique_ptr<Backend> ranks_of(const Grid& grid, const ModelConfig& config, const LoadOptions& options) {
  return loaded(make_thread_ranks(grid.tensor_size, grid.num_stages, 0, nullptr, grid.context_size, grid.divides_kv),
                config, options);
}

SchedulerConfig scheduler_of(int32_t num_stages, int32_t max_num_seqs, int32_t max_num_batched_tokens) {
  SchedulerConfig scheduler;
  scheduler.num_alternating = num_stages;
  scheduler.max_num_seqs = max_num_seqs, scheduler.max_num_batched_tokens = max_num_batched_tokens;
  scheduler.max_model_len = kMaxModelLen;
  return scheduler;
}

// Prompts and answers that end around borders of groups, of slices, and of blocks of two and three slices; of each two
// one begins as the other does.
std::vector<std::shared_ptr<const Request>> requests_around_borders(const ModelConfig& config) {
  std::vector<std::shared_ptr<const Request>> requests;
  for (const int32_t length : {1, 30, 31, 32, 33, 64, 223, 254, 255, 256, 257, 288, 500, 511, 513, 766, 769}) {
    auto request = std::make_shared<Request>(*request_with_choices(length, 1 + length % 2, 12));
    for (int32_t i = 0; i < length; ++i)
      request->prompt_tokens[static_cast<size_t>(i)] =
          (7 * i + (i < length / 2 ? length % 2 : length)) % config.vocab_size;
    requests.push_back(std::move(request));
  }
  return requests;
}

ScheduledRun answers_of_one(const std::string& name, const ModelConfig& config,
                            const std::vector<std::shared_ptr<const Request>>& requests) {
  return run_scheduled(*loaded(make_cpu_backend(), config, options_of(name, config, kKvGroup)), scheduler_of(1, 1, 300),
                       nullptr, requests);
}

}  // namespace

TEST_CASE("dense models, windows and sinks, in steps of every size, prompts that begin alike: the bytes of one rank") {
  size_t turn = 0;
  for (const std::string name : {"llama-gqa", "qwen2-window", "gemma3", "gemma4", "gpt_oss", "mixtral"}) {
    CAPTURE(name);
    const ModelConfig config = long_config(name);
    const auto requests = requests_around_borders(config);
    const ScheduledRun expected = answers_of_one(name, config, requests);
    for (size_t i = 0; i < std::size(kGrids); ++i) {
      if (turn > 0 && i % 3 != turn % 3) continue;
      const Grid& grid = kGrids[i];
      CAPTURE(grid.num_stages);
      CAPTURE(grid.context_size);
      CAPTURE(grid.divides_kv);
      if (!check_ranks(config, grid.tensor_size, grid.num_stages, grid.context_size).ok()) continue;
      const auto ranks = ranks_of(grid, config, options_of(name, config, grid.block_size()));
      CHECK(ranks->info().kv.block_size == grid.block_size());
      CHECK(ranks->info().state_period == kKvGroup);
      SchedulerConfig scheduler = scheduler_of(grid.num_stages, 6, i % 2 == 0 ? 300 : 63);
      scheduler.enable_prefix_caching = true;
      CHECK((run_scheduled(*ranks, scheduler, nullptr, requests).answers == expected.answers));
    }
    ++turn;
  }
}

TEST_CASE("beside parts of layers: the bytes of as many without it") {
  const ModelConfig config = long_config("llama-gqa");
  const auto requests = requests_around_borders(config);
  const auto answers = [&](const Grid& grid) {
    const auto ranks = ranks_of(grid, config, options_of("llama-gqa", config, grid.block_size()));
    return run_scheduled(*ranks, scheduler_of(grid.num_stages, 6, 200), nullptr, requests).answers;
  };
  const ScheduledAnswers expected = answers({2, 1, 1, false});
  for (const bool divides_kv : {false, true}) CHECK((answers({2, 1, 2, divides_kv}) == expected));
}

// Attention over a step goes in parts then.
TEST_CASE("where ranks have room for the states of 20 tokens in a message: the bytes of one rank") {
  const ModelConfig config = long_config("llama-gqa");
  const auto requests = requests_around_borders(config);
  const ScheduledRun expected = answers_of_one("llama-gqa", config, requests);
  const int64_t bytes = 20 * config.num_attention_heads * (ceil_div(config.head_dim, 16) * 16 + 2) * 4;
  const auto narrow = [&](RankContext& context) {
    context.context = std::make_unique<NarrowRoom>(std::move(context.context), bytes);
  };
  const auto ranks = loaded(make_thread_ranks(1, 1, 0, narrow, 2, true), config,
                            options_of("llama-gqa", config, 2 * kSliceTokens));
  CHECK((run_scheduled(*ranks, scheduler_of(1, 6, 200), nullptr, requests).answers == expected.answers));
}

// Right and wrong ones stand on both sides of a border, and a group is closed anew where they were wrong.
TEST_CASE("chains of drafts across borders of groups, slices and blocks: the answers of one rank without drafts") {
  const ModelConfig config = long_config("llama-gqa");
  const auto requests = requests_around_borders(config);
  const ScheduledRun plain = answers_of_one("llama-gqa", config, requests);
  for (const Grid& grid : kGrids) {
    CAPTURE(grid.context_size);
    CAPTURE(grid.divides_kv);
    const auto ranks = ranks_of(grid, config, options_of("llama-gqa", config, grid.block_size()));
    CHECK_FALSE(ranks->info().verifies_trees);
    ScriptedProposer proposer(tokens_of(requests, plain.answers), config.vocab_size,
                              {.propose_rate = 0.9, .right_rate = 0.8, .tree_rate = 0.0}, 7);
    SchedulerConfig scheduler = scheduler_of(grid.num_stages, 8, 300);
    scheduler.max_num_drafts = 96, scheduler.max_drafts_per_group = 12;
    const ScheduledRun drafted = run_scheduled(*ranks, scheduler, &proposer, requests);
    CHECK((drafted.answers == plain.answers));
    CHECK(drafted.num_given - drafted.num_groups > 20);
    CHECK(drafted.num_drafts > drafted.num_given - drafted.num_groups);
  }
}

// Three sequences have room until they need another block each, the second one behind their prompts'.
TEST_CASE("sequences that are swapped, and computed again: no bit changes") {
  const ModelConfig config = long_config("llama-gqa");
  for (const Grid& grid : kGrids) {
    CAPTURE(grid.context_size);
    CAPTURE(grid.divides_kv);
    std::vector<std::shared_ptr<const Request>> requests;
    if (grid.divides_kv && grid.context_size > 2) continue;  // answers would be long
    const int32_t end = grid.divides_kv ? grid.block_size() : 8 * kKvGroup;
    for (const int32_t before : {11, 10, 9, 8, 2, 1})
      requests.push_back(request_with_choices(end - before, 1, grid.block_size() + 20));
    const ScheduledRun plain = answers_of_one("llama-gqa", config, requests);
    LoadOptions options = options_of("llama-gqa", config, grid.block_size());
    options.num_blocks_override = 3 * (end / grid.block_size() + 1);
    options.swap_space_gib = 1;
    const auto ranks = ranks_of(grid, config, options);
    for (const PreemptionMode mode : {PreemptionMode::kSwap, PreemptionMode::kRecompute}) {
      SchedulerConfig scheduler = scheduler_of(grid.num_stages, 6, 90);
      scheduler.enable_prefix_caching = true;
      scheduler.preemption = mode;
      const ScheduledRun run = run_scheduled(*ranks, scheduler, nullptr, requests);
      CHECK((run.answers == plain.answers));
      CHECK(run.num_preemptions > 0);
      CHECK((run.num_swaps_in > 0) == (mode == PreemptionMode::kSwap));
    }
  }
}

}  // namespace llmb::test
