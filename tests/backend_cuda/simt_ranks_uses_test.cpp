// Swapping, choices, beams, forms and drafts over GPUs that compute a model together. The
// bytes are those without, whatever the timing; and where arithmetic is not in question, the answers of transformers.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/layer_groups.h"
#include "engine/engine.h"
#include "model/config_loader.h"
#include "model/eagle_layer.h"
#include "tests/backend_cuda/drafted_job.h"
#include "tests/backend_cuda/ranks_job.h"
#include "tests/support/beam_lines.h"
#include "tests/support/forked_ranks.h"
#include "tests/support/golden.h"
#include "tests/support/listed_requests.h"
#include "tests/support/medusa_golden.h"
#include "tests/support/scheduled_run.h"
#include "tests/support/text_jobs.h"
#include "tests/support/toy_constraint.h"
#include "tests/support/window_requests.h"

namespace llmb::test {
namespace {

LoadOptions options_with(const std::string& model, DType dtype, DType kv_dtype, int32_t num_blocks) {
  LoadOptions o = options_for(fixture(model), config_of_dir(fixture(model)), dtype);
  o.num_blocks_override = num_blocks;
  o.kv_cache_dtype = kv_dtype;
  return o;
}

ForkedRanksOptions delayed(uint64_t seed) {
  ForkedRanksOptions ranks;
  ranks.delay_seed = seed;
  return ranks;
}

// Parts of layers, stages and parts of rows, in turn.
ForkedRanksOptions of_kind(uint64_t turn) {
  ForkedRanksOptions ranks = delayed(turn + 1);
  if (turn % 3 > 0) ranks.tensor_size = 1;
  if (turn % 3 == 1) ranks.num_stages = 2;
  if (turn % 3 == 2) ranks.context_size = 2;
  return ranks;
}

std::unique_ptr<Backend> load(const LoadOptions& options, uint64_t delay_seed) {
  return loaded(std::make_unique<RanksAtWork>(delayed(delay_seed)), *load_model_config(options.model_dir), options);
}

TEST_CASE("sequences that are preempted, computed again or swapped, in KV caches of 16 and 8 bits: no bit changes") {
  const std::pair<const char*, DType> cases[] = {{"llama-gqa", DType::kBF16},
                                                 {"llama-gqa", DType::kI8},
                                                 {"llama-gqa", DType::kF8},
                                                 {"qwen2-window", DType::kBF16},
                                                 {"qwen2-window", DType::kF8}};
  for (const auto& [model, kv_dtype] : cases) {
    CAPTURE(model);
    CAPTURE(dtype_name(kv_dtype));
    const auto requests = window_requests({25, 30, 17}, 26);
    ScheduledRun expected;
    bool has_windows = false;
    LoadOptions few = options_with(model, DType::kBF16, kv_dtype, 100);
    {
      const auto ample = load(few, 0);
      expected = run_scheduled(*ample, scheduler_for(4, 40), nullptr, requests);
      CHECK(expected.num_preemptions == 0);
      const std::vector<int32_t>& windows = ample->info().kv.groups.windows;
      has_windows = windows.size() > 1;
      few.num_blocks_override = static_cast<int32_t>(max_live_blocks(windows, 8, 9, 8)) + 2;
    }
    few.swap_space_gib = 1;
    const auto small = load(few, 7);
    CHECK(small->info().num_host_blocks > small->info().kv.num_blocks);
    for (const PreemptionMode mode : {PreemptionMode::kSwap, PreemptionMode::kRecompute}) {
      SchedulerConfig config = scheduler_for(4, 9);
      config.preemption = mode;
      const ScheduledRun run = run_scheduled(*small, config, nullptr, requests);
      CHECK((run.answers == expected.answers));
      if (has_windows) continue;  // one sequence alone may need as many blocks as three do
      CHECK(run.num_preemptions > 0);
      CHECK((run.num_swaps_out > 0) == (mode == PreemptionMode::kSwap));
    }
  }
}

TEST_CASE("choices that share a prompt, and prompts that begin alike: the bits of each alone") {
  const auto backend = load(options_with("llama-gqa", DType::kBF16, DType::kBF16, 100), 3);
  std::vector<std::shared_ptr<const Request>> requests;
  for (const int32_t length : {7, 16, 17, 30}) requests.push_back(request_with_choices(length, 4, 9));
  requests.push_back(requests.back());
  const ScheduledAnswers expected = choices_alone(*backend, requests, 40);
  for (const auto& [seqs, tokens] : {std::pair{6, 40}, std::pair{3, 7}}) {
    const ScheduledRun run = run_scheduled(*backend, scheduler_for(seqs, tokens), nullptr, requests);
    CHECK((run.answers == expected));
    CHECK(run.num_shared_rows > 0);
  }
}

TEST_CASE("beams over ranks are token for token those of transformers, in fp32") {
  std::map<std::string, std::vector<nlohmann::json>> by_model;
  for (const auto& line : read_json_lines(source_dir() + "/data/fixtures/beams-models.jsonl"))
    by_model[line.at("model").get<std::string>()].push_back(line);
  for (const std::string model : {"llama-gqa", "gemma2"}) {
    CAPTURE(model);
    LoadOptions o = options_with(model, DType::kF32, DType::kF32, 200);
    const ModelConfig config = *load_model_config(o.model_dir);
    o.groups_layers = false;
    o.block_size = 16;
    o.max_num_seqs = 32;
    o.max_num_batched_tokens = 64;
    o.max_model_len = config.max_position_embeddings;
    check_beam_lines(*load(o, 5), config, by_model.at(model));
  }
}

TEST_CASE("rows with forms: one GPU's tokens, beside rows without, also where a token has no choice") {
  const LoadOptions options = options_with("llama-gqa", DType::kF32, DType::kF32, 100);
  const ModelConfig config = *load_model_config(options.model_dir);
  std::vector<std::shared_ptr<Request>> requests;
  for (int i = 0; i < 10; ++i) {
    auto request = std::make_shared<Request>(*request_with_choices(5 + 3 * i, 1, 10));
    request->params.sampling.temperature = i % 2 == 0 ? 0 : 1;
    const std::vector<TokenId> ends = {3};
    if (i % 3 != 2) request->constraint = std::make_shared<ToyConstraint>(i, config.vocab_size, 3, ends, i % 3);
    requests.push_back(std::move(request));
  }
  const auto answers_of = [&](Backend& backend, int32_t max_num_seqs) {
    SchedulerConfig scheduler = scheduler_for(max_num_seqs, 40);
    scheduler.num_blocks = backend.info().kv.num_blocks;
    scheduler.block_size = 8;
    ListSource source(requests);
    ListSink sink;
    SteadyClock clock;
    const std::atomic<int> interrupted{0};
    Engine engine({.scheduler = scheduler, .model = config, .num_threads = 2}, backend, nullptr, clock, source, sink,
                  interrupted, {});
    check_ok(engine.run());
    std::vector<std::vector<TokenId>> answers;
    for (const auto& [ordinal, item] : sink.items) {
      CHECK(!item.completion.error);
      answers.push_back(item.completion.choices[0].token_ids);
    }
    return answers;
  };
  const auto expected = answers_of(*loaded(make_cuda_backend(0), config, options), 6);
  const auto ranks = load(options, 2);
  for (const int32_t max_num_seqs : {6, 1}) CHECK((answers_of(*ranks, max_num_seqs) == expected));
}

TEST_CASE("verified drafts, in chains and trees, change no bit") {
  LoadOptions options = options_with("llama-gqa", DType::kBF16, DType::kBF16, 100);
  options.max_num_drafts = 14;
  const auto backend = load(options, 4);
  std::vector<std::shared_ptr<const Request>> requests;
  for (const int32_t length : {1, 8, 17}) requests.push_back(request_with_choices(length, 2, 20));
  const ScheduledRun plain = run_scheduled(*backend, scheduler_for(6, 40), nullptr, requests);
  check_verified_drafts(*backend, scheduler_for(6, 40), requests, plain, 10);
}

TEST_CASE("drafts by lookup, by a model, by the model's first layers and by lookahead change no byte") {
  EngineJobOptions o = deterministic_cuda_job(fixture("llama-gqa"));
  uint64_t seed = 0;
  o.make_backend = [&seed] { return std::make_unique<RanksAtWork>(delayed(seed++)); };
  const std::string same_model = "/data/fixtures/models/llama-gqa";
  for (const DraftBy by : {DraftBy::kModel, DraftBy::kLayers, DraftBy::kLookahead}) {
    CAPTURE(static_cast<int>(by));
    const SpeculationMetrics metrics =
        check_same_bytes(o, {.by = by,
                             .num_layers = 1,
                             .model = same_model,
                             .max_tokens = 3,
                             .max_model_len = 32,
                             .num_blocks = 12,
                             .max_num_batched_tokens = 16,
                             .looks_up = true});
    CHECK(metrics.drafters.back().num_drafted > 0);
  }
}

TEST_CASE("vectors of texts are sentence-transformers'") {
  uint64_t turn = 0;
  for (const std::string name : {"bert", "modernbert", "bert", "roberta", "embeddinggemma"}) {
    CAPTURE(name);
    CAPTURE(turn);
    const std::string dir = source_dir() + "/data/fixtures/encoders/" + name;
    EngineJobOptions o = encoder_job(dir);
    o.make_backend = [ranks = of_kind(turn++)] { return std::make_unique<RanksAtWork>(ranks); };
    o.load.num_threads = 1;
    o.load.cuda.deterministic = true;
    o.scheduler.max_model_len = o.scheduler.max_num_batched_tokens = 80;
    std::vector<nlohmann::json> golden, lines;
    for (const nlohmann::json& line : read_json_lines(dir + "/golden.jsonl"))
      if (line["token_ids"].size() <= 40) golden.push_back(line), lines.push_back({{"prompt", line["text"]}});
    const auto records = answers_to(lines, o);
    for (size_t i = 0; i < golden.size(); ++i) CHECK(distance(records[i]["embedding"], golden[i]["embedding"]) <= 2e-6);
    o.scheduler.max_num_seqs = 1;
    CHECK(answers_to(lines, o) == records);
  }
}

TEST_CASE("drafts by heads and by layers behind the last one change no byte") {
  // Over parts of layers, and one other kind.
  const auto check = [](EngineJobOptions o, DraftSetup setup, uint64_t other_kind) {
    setup.max_model_len = 32, setup.num_blocks = 12, setup.max_num_batched_tokens = 16;
    std::string name;
    for (const uint64_t turn : {uint64_t{0}, other_kind}) {
      CAPTURE(turn);
      const ForkedRanksOptions ranks = of_kind(turn);
      o.make_backend = [ranks] { return std::make_unique<RanksAtWork>(ranks); };
      o.scheduler.num_alternating = ranks.num_stages;
      const SpeculationMetrics::Kind drafts = check_same_bytes(o, setup).drafters.back();
      CHECK(drafts.num_drafted > 20);
      name = drafts.name;
    }
    return name;
  };
  const std::string heads = check(deterministic_cuda_job(medusa_fixture_model()),
                                  {.by = DraftBy::kMedusa, .heads = medusa_fixture(), .max_tokens = 6}, 2);
  CHECK(heads == "medusa");
  const std::string fixtures = source_dir() + "/data/fixtures/";
  const DraftSetup behind_last = {.by = DraftBy::kLayers, .num_layers = 0, .max_tokens = 3};
  CHECK(check(deterministic_cuda_job(fixtures + "mtp/deepseek_v3"), behind_last, 2) == "mtp");
  EngineJobOptions eagle = deterministic_cuda_job(fixture("llama-gqa"));
  eagle.load.eagle_dir = fixtures + "eagle/llama-gqa-3";
  EagleFiles::open(eagle.load.eagle_dir, eagle.config).value().describe(&eagle.config);
  CHECK(check(eagle, behind_last, 1) == "mtp");
}

}  // namespace
}  // namespace llmb::test
