// Drafts, adapters and vectors of texts over GPUs that divide keys and values by position, each rank a process on the host
// layer: the bytes of one GPU, also around borders of slices and of blocks.
#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/rank_part.h"
#include "kernels/simt/settings.h"
#include "model/eagle_layer.h"
#include "tests/backend_cuda/drafted_job.h"
#include "tests/backend_cuda/ranks_job.h"
#include "tests/support/all_schedules.h"
#include "tests/support/draft_guesses.h"
#include "tests/support/forked_ranks.h"
#include "tests/support/medusa_golden.h"
#include "tests/support/random_adapters.h"
#include "tests/support/short_adapted_requests.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text_jobs.h"

namespace llmb::test {
namespace {

const std::string kFixtures = source_dir() + "/data/fixtures/";

ForkedRanksOptions divided(int32_t num_slices, int32_t tensor_size = 1, int32_t num_stages = 1, uint64_t seed = 0) {
  ForkedRanksOptions ranks = row_ranks(num_slices, tensor_size, num_stages, seed);
  ranks.divides_kv = true;
  return ranks;
}

// The model's own layer behind its last one, or an EAGLE layer of the fixtures.
struct DraftingModel {
  std::string model, eagle;
  ModelConfig config;

  DraftingModel(const std::string& name, const std::string& eagle_name) : model(kFixtures + name) {
    config = config_of_dir(model);
    config.mtp.is_used = true;
    if (eagle_name.empty()) return;
    eagle = kFixtures + "eagle/" + eagle_name;
    EagleFiles::open(eagle, config).value().describe(&config);
  }
};

}  // namespace

TEST_CASE("a layer behind the last one guesses what it does on one GPU, also where a state before it is another rank's") {
  struct Case {
    DraftingModel drafting;
    DType dtype, kv_dtype;
    ForkedRanksOptions grid;
  };
  const std::vector<int32_t> lengths = {3, 255, 510};
  constexpr int32_t kMaxTokens = 528;
  std::vector<Case> cases = {{{"mtp/glm4_moe", ""}, DType::kBF16, DType::kF8, divided(2, 1, 1, 3)},
                             {{"mtp/deepseek_v3", ""}, DType::kF32, DType::kF32, divided(3)},
                             {{"mtp/qwen3_5-text", ""}, DType::kBF16, DType::kBF16, divided(2)},
                             {{"models/llama-gqa", "llama-gqa-3"}, DType::kBF16, DType::kBF16, divided(2, 1, 2, 5)},
                             {{"models/llama-gqa", "llama-gqa"}, DType::kF32, DType::kI8, divided(2)}};
  for (const char* const eagle : {"qwen3", "qwen3-3", "qwen3_moe"})
    if (const std::string name = eagle; runs_all_schedules())
      cases.push_back({{"models/" + name.substr(0, name.find('-')), name}, DType::kBF16, DType::kBF16, divided(2)});
  for (Case& c : cases) {
    CAPTURE(c.drafting.model);
    ModelConfig& config = c.drafting.config;
    config.max_position_embeddings = std::max(config.max_position_embeddings, kMaxTokens);
    LoadOptions options = options_for(c.drafting.model, config, c.dtype);
    options.groups_layers = false;
    options.eagle_dir = c.drafting.eagle;
    options.kv_cache_dtype = c.kv_dtype;
    options.max_model_len = kMaxTokens;
    options.max_num_batched_tokens = 128;
    const auto guesses = [&](std::unique_ptr<Backend> backend, int32_t block_size, int32_t chunk) {
      options.block_size = block_size;
      options.num_blocks_override = static_cast<int32_t>(lengths.size() * ceil_div(kMaxTokens, block_size));
      return draft_layer_guesses(*loaded(std::move(backend), config, options), config.vocab_size, lengths, chunk,
                                 kMaxTokens);
    };
    const std::vector<float> expected = guesses(make_cuda_backend(0), 16, 128);
    CHECK(expected.size() > 3 * 20 * lengths.size() / 2);
    CHECK((guesses(make_forked_ranks(c.grid).backend, c.grid.context_size * kSliceTokens, 128) == expected));
    if (c.kv_dtype != DType::kF32) continue;
    options.cuda.deterministic = false;  // steps of one row a text exchange states of rows
    const uint64_t before = simt::num_runs("join_pieces");
    const auto rounded = guesses(make_forked_ranks(c.grid).backend, c.grid.context_size * kSliceTokens, 128);
    CHECK(simt::num_runs("join_pieces") > before);
    REQUIRE(rounded.size() == expected.size());
    for (size_t i = 0; i < rounded.size(); ++i) CHECK(std::abs(rounded[i] - expected[i]) <= 1e-4f);
  }
}

TEST_CASE("drafts by first layers, by heads and by layers behind the last one change no byte") {
  std::string rows;
  for (const int length : {250, 6, 255}) {
    nlohmann::json line = {{"max_tokens", 8}, {"return_token_ids", true}, {"logprobs", 1}, {"seed", length}};
    line["temperature"] = length % 2 == 0 ? 0.0 : 0.9;
    for (int i = 0; i < length; ++i) line["prompt_token_ids"].push_back((7 * i + length) % 60 + 3);
    rows += line.dump() + "\n";
  }
  const auto check = [&](EngineJobOptions o, DraftSetup setup, const ForkedRanksOptions& ranks) {
    CAPTURE(static_cast<int>(setup.by));
    o.config.max_position_embeddings = std::max(o.config.max_position_embeddings, 264);
    o.make_backend = [ranks] { return std::make_unique<RanksAtWork>(ranks); };
    o.scheduler.max_model_len = setup.max_model_len = 264;
    o.scheduler.max_num_batched_tokens = setup.max_num_batched_tokens = 64;
    o.scheduler.block_size = o.load.block_size = ranks.context_size * kSliceTokens;
    setup.max_tokens = 3, setup.num_blocks = 6;
    const SpeculationMetrics::Kind drafts = check_same_bytes(o, setup, rows).drafters.back();
    CHECK(drafts.num_drafted > 8);
  };
  const EngineJobOptions llama = deterministic_cuda_job(fixture("llama-gqa"));
  check(llama, {.by = DraftBy::kLayers, .num_layers = 1, .looks_up = true}, divided(2, 1, 1, 2));
  check(llama, {.by = DraftBy::kMedusa, .heads = medusa_fixture()}, divided(2));
  check(deterministic_cuda_job(kFixtures + "mtp/deepseek_v3"), {.by = DraftBy::kLayers, .num_layers = 0}, divided(2));
  EngineJobOptions eagle = llama;
  eagle.load.eagle_dir = kFixtures + "eagle/llama-gqa-3";
  EagleFiles::open(eagle.load.eagle_dir, eagle.config).value().describe(&eagle.config);
  check(eagle, {.by = DraftBy::kLayers, .num_layers = 0}, divided(2, 2));
}

TEST_CASE("adapters, mixed with each other and none: the bits of one GPU") {
  const TempDir dir;
  AdaptedModel model = random_adapted_model("llama-gqa", dir.path());
  const int32_t lengths[] = {4, 255, 256};
  for (size_t i = 0; i < model.requests.size(); ++i)
    for (int32_t k = static_cast<int32_t>(model.requests[i].prompt.size()); k < lengths[i / 3]; ++k)
      model.requests[i].prompt.push_back((7 * k + 3) % model.config.vocab_size);
  model.config.max_position_embeddings = 288;
  LoadOptions options = short_adapted_options("llama-gqa", model, DType::kBF16, kRoomForAdapters);
  options.max_model_len = 288, options.num_blocks_override = 200, options.max_num_batched_tokens = 96;
  const auto expected =
      generate_at_random(*loaded(make_cuda_backend(0), model.config, options), model.requests, 96, 6, 1);
  CHECK(expected[3].tokens != expected[4].tokens);
  options.block_size = 2 * kSliceTokens, options.num_blocks_override = 20;
  CHECK((generate_at_random(*load_forked_ranks(divided(2, 1, 1, 4), model.config, options), model.requests, 80, 5, 2) ==
         expected));
}

TEST_CASE("a decoder's vectors of texts, of their last states and of all: one GPU's bytes") {
  std::vector<nlohmann::json> lines;
  for (const int32_t length : {1, 9, 255, 257, 300}) {
    nlohmann::json& tokens = lines.emplace_back()["prompt_token_ids"];
    for (int32_t i = 0; i < length; ++i) tokens.push_back(3 + (7 * i + length) % 50);
  }
  for (const PoolingKind kind : {PoolingKind::kLast, PoolingKind::kMean}) {
    CAPTURE(pooling_name(kind));
    EngineJobOptions o = text_job(fixture("qwen3"));
    o.config.max_position_embeddings = std::max(o.config.max_position_embeddings, 320);
    o.make_backend = [] { return make_cuda_backend(0); };
    o.load.cuda.deterministic = true;
    o.load.dtype = o.load.kv_cache_dtype = DType::kBF16;
    Pooling pooling;
    pooling.kind = kind;
    o.load.pooling = pooling;
    o.defaults.task = Task::kEmbed;
    o.defaults.embed.normalizes = pooling.normalizes;
    o.scheduler.max_model_len = o.scheduler.max_num_batched_tokens = 320;
    o.scheduler.num_blocks = 100;
    const auto expected = answers_to(lines, o);
    for (const nlohmann::json& record : expected) REQUIRE_MESSAGE(record.contains("embedding"), record.dump());
    o.make_backend = [] { return std::make_unique<RanksAtWork>(divided(2, 1, 1, 6)); };
    o.scheduler.block_size = 2 * kSliceTokens, o.scheduler.num_blocks = 8;
    CHECK(answers_to(lines, o) == expected);
    if (kind == PoolingKind::kMean) continue;  // of a whole text in a step
    o.scheduler.max_num_batched_tokens = 100;
    CHECK(answers_to(lines, o) == expected);
  }
}

// Each rank computes all rows of such a text, and keeps its slices.
TEST_CASE("vectors and scores by encoders, and by decoders that classify: one GPU's bytes") {
  const auto check = [](EngineJobOptions o, const std::vector<nlohmann::json>& lines) {
    o.make_backend = [] { return make_cuda_backend(0); };
    o.load.num_threads = 1;
    o.load.cuda.deterministic = true;
    const auto expected = answers_to(lines, o);
    for (const nlohmann::json& record : expected) REQUIRE_MESSAGE(!record.contains("error"), record.dump());
    o.make_backend = [] { return std::make_unique<RanksAtWork>(divided(2)); };
    o.scheduler.block_size = 2 * kSliceTokens, o.scheduler.num_blocks = 9;
    CHECK(answers_to(lines, o) == expected);
  };
  for (const std::string& dir : encoder_dirs()) {
    CAPTURE(dir);
    if (!runs_all_schedules() && !dir.ends_with("/bert") && !dir.ends_with("/modernbert")) continue;
    std::vector<nlohmann::json> lines;
    for (const nlohmann::json& line : read_json_lines(dir + "/golden.jsonl"))
      if (const size_t length = line["token_ids"].size(); length < 10 || length > 256)
        lines.push_back({{"prompt", line["text"]}});
    check(encoder_job(dir), lines);
  }
  check(classifier_job("llama"), {{{"prompt", "The quick brown fox."}}, {{"prompt", "a"}}});
  check(classifier_job("bert"), {{{"text_1", "The quick"}, {"text_2", "brown fox."}}, {{"prompt", "a"}}});
}

}  // namespace llmb::test
