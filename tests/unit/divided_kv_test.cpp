// Ranks that divide keys and values by position give the bytes of one rank, and each keeps its share of the pool.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/kv_pool.h"
#include "core/rank_part.h"
#include "model/config_loader.h"
#include "tests/support/delayed_calls.h"
#include "tests/support/draft_guesses.h"
#include "tests/support/golden.h"
#include "tests/support/plan_builder.h"
#include "tests/support/scheduled_run.h"
#include "tests/support/scripted_proposer.h"
#include "tests/support/source_dir.h"
#include "tests/support/test_rng.h"
#include "tests/support/thread_ranks.h"
#include "tests/unit/golden_answers.h"

namespace llmb::test {
namespace {

constexpr int32_t kMaxModelLen = 1600;

LoadOptions options_of(const std::string& dir, const ModelConfig& config, DType kv_dtype, int32_t block_size) {
  LoadOptions options = golden_options(dir, config, block_size, /*groups_layers=*/true);
  options.max_num_batched_tokens = 300;
  options.num_threads = 1;
  options.kv_cache_dtype = kv_dtype;
  return options;
}

// A model of a golden file, for longer texts than it was made for.
ModelConfig long_config(const std::string& dir) {
  auto config = load_model_config(dir);
  REQUIRE(config.ok());
  config->max_position_embeddings = kMaxModelLen;
  return *config;
}

// Prompts whose answers begin or end around borders of slices, and of blocks of two and three slices.
std::vector<GenerateRequest> requests_around_borders(const ModelConfig& config) {
  std::vector<GenerateRequest> requests;
  TestRng rng(5);
  for (const int32_t length : {1, 255, 256, 257, 508, 511, 513, 766, 1023, 1533}) {
    GenerateRequest& r = requests.emplace_back();
    for (int32_t i = 0; i < length; ++i) r.prompt.push_back(rng.between(0, config.vocab_size - 1));
    r.num_tokens = 5;
    r.sampling.num_logprobs = 3;
  }
  return requests;
}

std::string answers(Backend& backend, const ModelConfig& config) {
  return bytes_of(generate_at_random(backend, requests_around_borders(config), 300, 32, 9));
}

std::string answers_over(int32_t tensor_size, int32_t num_stages, int32_t num_slices, const std::string& dir,
                         const ModelConfig& config, DType kv_dtype, const PrepareRank& prepare = nullptr) {
  const auto backend = make_thread_ranks(tensor_size, num_stages, 0, prepare, num_slices, num_slices > 1);
  const int32_t block_size = num_slices > 1 ? num_slices * kSliceTokens : 16;
  const Status status = backend->load(config, options_of(dir, config, kv_dtype, block_size));
  REQUIRE_MESSAGE(status.ok(), status.message());
  CHECK(backend->info().kv.block_size == block_size);
  return answers(*backend, config);
}

std::vector<float> guesses_around_borders(std::unique_ptr<Backend> not_loaded, const std::string& dir, DType kv_dtype,
                                          int32_t block_size) {
  constexpr int32_t kMaxTokens = 1024;
  const std::vector<int32_t> lengths = {3, 254, 255, 256, 257, 510, 512, 700};
  ModelConfig config = long_config(dir);
  config.mtp.is_used = true;
  LoadOptions options = options_of(dir, config, kv_dtype, block_size);
  options.max_model_len = kMaxTokens;
  options.num_blocks_override = static_cast<int32_t>(lengths.size()) * (kMaxTokens / block_size + 1);
  const auto backend = loaded(std::move(not_loaded), config, options);
  return draft_layer_guesses(*backend, config.vocab_size, lengths, 290, kMaxTokens);
}

}  // namespace

TEST_CASE("the layer behind the last one guesses what it guesses on one rank, also where its state is another rank's") {
  for (const std::string name : {"glm4_moe", "deepseek_v3"}) {
    CAPTURE(name);
    const std::string dir = source_dir() + "/data/fixtures/mtp/" + name;
    const DType kv_dtype = name == "glm4_moe" ? DType::kBF16 : DType::kF32;
    const std::vector<float> expected = guesses_around_borders(make_cpu_backend(), dir, kv_dtype, 16);
    CHECK(expected.size() > 8 * 3 * 8);
    for (const int32_t num_stages : {1, 2})
      CHECK((guesses_around_borders(make_thread_ranks(1, num_stages, 0, nullptr, 2, true), dir, kv_dtype,
                                    2 * kSliceTokens) == expected));
    CHECK((guesses_around_borders(make_thread_ranks(1, 1, 0, nullptr, 3, true), dir, kv_dtype, 3 * kSliceTokens) ==
           expected));
    CHECK((guesses_around_borders(make_thread_ranks(1, 1, 0, nullptr, 2), dir, kv_dtype, 16) == expected));
  }
}

TEST_CASE("every golden model that fits longer texts: the bytes of one rank") {
  int num_divided = 0, num_short = 0, turn = 0;
  for (const std::string& dir : golden_model_dirs()) {
    CAPTURE(dir);
    const ModelConfig config = long_config(dir);
    REQUIRE(check_ranks(config, 1, 1, 2).ok());
    const DType kv_dtype =
        config.has_latent() ? DType::kBF16 : std::vector{DType::kF32, DType::kBF16, DType::kI8}[turn % 3];
    const auto alone = make_cpu_backend();
    if (!alone->load(config, options_of(dir, config, kv_dtype, 16)).ok()) {  // a table of fewer positions
      ++num_short;
      continue;
    }
    ++turn;
    const std::string expected = answers(*alone, config);
    CHECK((answers_over(1, 1, 2 + turn % 2, dir, config, kv_dtype) == expected));
    if (turn % 4 == 0 && check_ranks(config, 1, 2, 2).ok())
      CHECK((answers_over(1, 2, 2, dir, config, kv_dtype) == expected));
    if (turn % 4 == 1 && check_ranks(config, 2, 1, 2).ok())
      CHECK((answers_over(2, 1, 2, dir, config, kv_dtype) == answers_over(2, 1, 1, dir, config, kv_dtype)));
    ++num_divided;
  }
  MESSAGE(num_divided << " divided, " << num_short << " of too few positions");
  CHECK(num_divided > 50);
}

// Branches lie behind borders of slices where what they see lies before them, and the other way round.
TEST_CASE("chains and trees of drafts around borders of slices and of blocks: the answers of one rank without drafts") {
  int64_t num_trees = 0;
  for (const std::string name : {"llama-gqa", "gemma2", "deepseek_v3"}) {
    CAPTURE(name);
    const std::string dir = source_dir() + "/data/fixtures/models/" + name;
    const ModelConfig config = long_config(dir);
    const DType kv_dtype = name == "llama-gqa" ? DType::kI8 : DType::kBF16;
    std::vector<std::shared_ptr<const Request>> requests;
    for (const int32_t length : {3, 246, 253, 256, 500, 509, 511, 766}) {
      auto request = std::make_shared<Request>(*request_with_choices(length, 2, 20));
      for (TokenId& token : request->prompt_tokens) token %= config.vocab_size;
      requests.push_back(std::move(request));
    }
    SchedulerConfig scheduler;
    scheduler.max_num_seqs = 8, scheduler.max_num_batched_tokens = 300, scheduler.max_model_len = kMaxModelLen;
    const ScheduledRun plain = run_scheduled(
        *loaded(make_cpu_backend(), config, options_of(dir, config, kv_dtype, 16)), scheduler, nullptr, requests);
    for (const int32_t num_slices : {2, 3}) {
      LoadOptions options = options_of(dir, config, kv_dtype, num_slices * kSliceTokens);
      options.max_num_drafts = 96;
      const auto ranks = loaded(make_thread_ranks(1, 1, 0, nullptr, num_slices, true), config, options);
      CHECK(ranks->info().verifies_trees);
      for (const double tree_rate : {0.0, 0.9}) {
        ScriptedProposer proposer(tokens_of(requests, plain.answers), config.vocab_size,
                                  {.propose_rate = 0.9, .right_rate = 0.8, .tree_rate = tree_rate}, 7);
        scheduler.max_num_drafts = 96, scheduler.max_drafts_per_group = 12, scheduler.allows_trees = tree_rate > 0;
        const ScheduledRun drafted = run_scheduled(*ranks, scheduler, &proposer, requests);
        CHECK((drafted.answers == plain.answers));
        CHECK(drafted.num_given - drafted.num_groups > 40);
        num_trees += drafted.num_trees;
      }
    }
  }
  CHECK(num_trees > 100);
}

TEST_CASE("bytes are equal over 20 runs with random delays in every call, and ranks do meet") {
  const std::string dir = source_dir() + "/data/fixtures/models/llama-gqa";
  const ModelConfig config = long_config(dir);
  const auto alone = make_cpu_backend();
  check_ok(alone->load(config, options_of(dir, config, DType::kBF16, 16)));
  const std::string expected = answers(*alone, config);
  for (uint64_t run = 0; run < 20; ++run) {
    DelayedCalls* of_rank_0 = nullptr;
    const auto prepare = [&](RankContext& context) {
      delay_calls(&context, run);
      if (context.part.rank == 0) of_rank_0 = static_cast<DelayedCalls*>(context.context.get());
    };
    const auto backend = make_thread_ranks(1, 1, 0, prepare, 2, true);
    check_ok(backend->load(config, options_of(dir, config, DType::kBF16, 2 * kSliceTokens)));
    CHECK((answers(*backend, config) == expected));
    CHECK(of_rank_0->num_calls() > 100);
  }
}

TEST_CASE("ranks have as many blocks as one would, and of each its slice: a context that one does not hold") {
  const std::string dir = source_dir() + "/data/fixtures/models/llama-gqa";
  const ModelConfig config = long_config(dir);
  LoadOptions options = options_of(dir, config, DType::kF32, 2 * kSliceTokens);
  const auto whole = plan_kv_layout(config, options, 0);
  REQUIRE(whole.ok());
  const RankPart rank_1 = {1, 1, 1, 2, true};
  CHECK(num_blocks_of_ranks(config, options, *whole, rank_1) == whole->num_blocks);
  CHECK(2 * kv_of_rank(config, *whole, rank_1).bytes_per_block() == whole->bytes_per_block());
  // Memory of each rank for half of the longest text.
  const int64_t of_text = ceil_div(kMaxModelLen, 2 * kSliceTokens) * whole->bytes_per_block();
  options.kv_cache_bytes = of_text / 2;
  CHECK(plan_kv_layout(config, options, 0).status().code() == StatusCode::kResourceExhausted);
  options.kv_cache_bytes = of_text;
  const auto both = plan_kv_layout(config, options, 0);
  REQUIRE(both.ok());
  CHECK(KvPool(kv_of_rank(config, *both, rank_1)).block_bytes() * both->num_blocks <= of_text / 2);
}

}  // namespace llmb::test
