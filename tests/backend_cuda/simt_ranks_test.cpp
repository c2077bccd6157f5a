// A model that several GPUs compute together, each rank a process on the host layer: the answers of one, whatever the
// timing; and whichever of them dies or hangs, all end.
#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_ranks.h"
#include "backend/cuda/divided_rows.h"
#include "core/rank_part.h"
#include "model/eagle_layer.h"
#include "tests/backend_cuda/ranks_job.h"
#include "tests/support/all_schedules.h"
#include "tests/support/compare.h"
#include "tests/support/draft_layer_trial.h"
#include "tests/support/forked_ranks.h"
#include "tests/support/golden.h"
#include "tests/support/medusa_golden.h"
#include "tests/support/plan_builder.h"
#include "tests/support/temp_dir.h"
#include "tests/support/twice_the_tokens.h"

namespace llmb::test {
namespace {

constexpr int32_t kMaxNumBatchedTokens = 64;
const std::set<std::string> kKinds = {"llama-gqa", "llama-mqa-tied", "qwen2",      "gemma2",      "olmo2",
                                      "qwen3_moe", "gpt_oss",        "phi3",       "gpt2",        "bloom",
                                      "falcon",    "starcoder2",     "lfm2",       "deepseek_v3", "qwen3_next",
                                      "gemma4",    "gemma4-experts", "gemma4-keys", "granitemoehybrid-dense"};

LoadOptions rank_options(const std::string& dir, const ModelConfig& config, DType dtype) {
  LoadOptions options;
  options.model_dir = dir;
  options.max_num_seqs = 12;
  options.max_num_batched_tokens = kMaxNumBatchedTokens;
  options.max_model_len = std::min(config.max_position_embeddings, 256);
  options.num_blocks_override = 160;
  options.num_threads = 1;
  options.dtype = options.kv_cache_dtype = dtype;
  return options;
}

// The beginnings of short lines.
std::vector<nlohmann::json> short_lines(const std::string& dir, size_t most_tokens = 5) {
  std::vector<nlohmann::json> lines = read_json_lines(dir + "/golden.jsonl");
  std::erase_if(lines, [](const nlohmann::json& line) { return line.at("prompt_token_ids").size() > 17; });
  for (nlohmann::json& line : lines)
    for (const char* field : {"token_ids", "logprobs"})
      if (line.at(field).size() > most_tokens)
        line[field].erase(line[field].begin() + static_cast<std::ptrdiff_t>(most_tokens), line[field].end());
  return lines;
}

std::vector<GenerateRequest> requests_of(const std::vector<nlohmann::json>& lines) {
  std::vector<GenerateRequest> requests;
  for (const auto& line : lines) {
    GenerateRequest& r = requests.emplace_back();
    r.prompt = line.at("prompt_token_ids").get<std::vector<TokenId>>();
    r.num_tokens = static_cast<int32_t>(line.at("token_ids").size());
    r.sampling.num_logprobs = 5;
  }
  return requests;
}

std::vector<Generated> answers_of(Backend& backend, const std::vector<GenerateRequest>& requests, uint64_t seed = 1) {
  return generate_at_random(backend, requests, seed % 2 == 1 ? 64 : 9, 12, seed);
}

}  // namespace

TEST_CASE("golden models over two and four GPUs: the reference's tokens and log probabilities, or refused by name") {
  int num_divided = 0;
  for (const std::string& dir : golden_model_dirs()) {
    const std::string name = std::filesystem::path(dir).filename().string();
    if (!runs_all_schedules() && !kKinds.contains(name)) continue;
    const ModelConfig config = config_of_dir(dir);
    const auto lines = short_lines(dir);
    for (const int32_t size : {2, 4}) {
      if (size == 4 && !runs_all_schedules() && name != "llama-gqa" && name != "gpt_oss") continue;
      CAPTURE(name);
      CAPTURE(size);
      ForkedRanksOptions ranks;
      ranks.tensor_size = size;
      ForkedRanks made = make_forked_ranks(ranks);
      LoadOptions options = rank_options(dir, config, DType::kF32);
      options.cuda.deterministic = num_divided % 2 == 1;
      const Status status = made.backend->load(config, options);
      if (!status.ok()) {
        CHECK_MESSAGE(status.code() == StatusCode::kUnsupported, status.message());
        MESSAGE(name << " over " << size << ": " << status.message());
        continue;
      }
      ++num_divided;
      const auto answers = answers_of(*made.backend, requests_of(lines));
      for (size_t i = 0; i < lines.size(); ++i) {
        CAPTURE(i);
        CHECK(answers[i].tokens == lines[i].at("token_ids").get<std::vector<TokenId>>());
        CHECK(compare(answers[i].logprobs, lines[i].at("logprobs").get<std::vector<double>>(), 0, 1e-4) == "");
      }
    }
  }
  MESSAGE(num_divided << " divided");
  CHECK(num_divided >= 12);
}

TEST_CASE("two groups of Mamba-2 over four GPUs: a CPU's tokens and log probabilities") {
  const TempDir dir;
  write_twice_the_tokens("nemotron_h", dir);
  const ModelConfig config = config_of_dir(dir.path());
  REQUIRE(config.state.num_norms == 2);
  const auto requests = requests_of(short_lines(dir.path()));
  LoadOptions options = rank_options(dir.path(), config, DType::kF32);
  const auto expected = answers_of(*loaded(make_cpu_backend(), config, options), requests);
  for (const bool is_deterministic : {false, true}) {
    options.cuda.deterministic = is_deterministic;
    const auto backend = load_forked_ranks({.tensor_size = 4}, config, options);
    for (const uint64_t seed : {1, 2}) {
      const auto answers = answers_of(*backend, requests, seed);
      for (size_t i = 0; i < requests.size(); ++i) {
        CAPTURE(i);
        CHECK(answers[i].tokens == expected[i].tokens);
        CHECK(compare(answers[i].logprobs, expected[i].logprobs, 0, 1e-4) == "");
      }
    }
  }
}

TEST_CASE("where MLPs differ by layer all layers have the sets of keys and values that the rank has") {
  ModelConfig config = config_of_dir(fixture("llama-gqa"));
  config.num_attention_heads = 6, config.num_key_value_heads = 3;  // which the host's ranks cut within a set
  config.mtp.is_used = true;
  config.mtp.layer.intermediate_size = 40;
  for (RankPart part = {.tensor_size = 2}; part.rank < part.tensor_size; ++part.rank) {
    const ModelShare share = share_of_gpu(config, part);
    for (int32_t layer = 0; layer < config.num_used_layers(); ++layer)
      CHECK(share.kv_heads_of(layer).count() == llmb::config_of(config, share).num_kv_heads_of(layer));
  }
}

TEST_CASE("heads and layers behind the last one, which draft, give their definitions' best tokens") {
  const std::string fixtures = source_dir() + "/data/fixtures/";
  const std::vector<ForkedRanksOptions> grids = {{.tensor_size = 2},
                                                 {.tensor_size = 1, .num_stages = 2},
                                                 {.tensor_size = 1, .context_size = 2},
                                                 {.tensor_size = 2, .num_stages = 2},
                                                 {.tensor_size = 1, .context_size = 2, .divides_kv = true}};
  size_t turn = 0;
  const auto over_ranks = [&](const ModelConfig& config, LoadOptions options) {
    const ForkedRanksOptions& grid = grids[turn % grids.size()];
    if (grid.divides_kv) options.block_size = grid.context_size * kSliceTokens;
    return load_forked_ranks(grid, config, options);
  };
  for (; turn < grids.size(); ++turn)
    check_medusa_golden(*over_ranks(config_of_dir(medusa_fixture_model()), medusa_golden_options()), 1e-3);
  for (const std::string name : {"mtp/deepseek_v3", "mtp/qwen3_next", "eagle/llama-gqa", "eagle/llama-gqa-3"}) {
    CAPTURE(name);
    LoadOptions options = draft_layer_options(fixtures + name, 8);
    if (name.starts_with("eagle")) options.model_dir = fixture("llama-gqa"), options.eagle_dir = fixtures + name;
    ModelConfig config = config_of_dir(options.model_dir);
    config.mtp.is_used = true;
    if (!options.eagle_dir.empty()) EagleFiles::open(options.eagle_dir, config).value().describe(&config);
    const auto lines = read_json_lines(fixtures + name + "/golden.jsonl");
    for (turn = 0; turn < grids.size(); ++turn) {
      CAPTURE(turn);
      if (!check_ranks(config, 1, grids[turn].num_stages, grids[turn].context_size).ok()) continue;
      const auto backend = over_ranks(config, options);
      for (size_t i = turn % 3; i < lines.size(); i += 3) {
        DraftLayerTrial trial(*backend, lines[i], i % 2 == 0 ? 64 : 7);
        trial.read_prompt();
        trial.check_guesses(i % 2 == 0);
      }
    }
  }
}

TEST_CASE("deterministic: bytes do not depend on the timing of any call, nor on the schedule") {
  const std::string dir = fixture("llama-gqa");
  const ModelConfig config = config_of_dir(dir);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    LoadOptions options = rank_options(dir, config, dtype);
    options.cuda.deterministic = true;
    std::vector<GenerateRequest> requests = requests_of(short_lines(dir));
    for (size_t i = 0; i < requests.size(); ++i)
      if (i % 2 == 1) requests[i].sampling.temperature = 0.9f, requests[i].sampling.rng = {5, i};
    std::vector<Generated> expected;
    const uint64_t num_runs = runs_all_schedules() ? 20 : 4;
    for (uint64_t seed = 0; seed < num_runs; ++seed) {
      ForkedRanksOptions ranks;
      ranks.delay_seed = seed;
      const auto backend = load_forked_ranks(ranks, config, options);
      const auto answers = answers_of(*backend, requests, seed + 1);
      if (seed == 0) expected = answers;
      CHECK((answers == expected));
    }
  }
}

// On the host layer ranks divide the rows of steps of 3 and more (kernels/cuda/tuning.h): with four of them some have
// one row, or none, and sums of long steps are made in turns.
TEST_CASE("norms of a part of the rows on each GPU: the bytes of norms of all rows on all of them") {
  int num_divided = 0;
  for (const std::string& dir : golden_model_dirs()) {
    const std::string name = std::filesystem::path(dir).filename().string();
    if (!runs_all_schedules() && !kKinds.contains(name)) continue;
    const ModelConfig config = config_of_dir(dir);
    std::vector<GenerateRequest> requests = requests_of(short_lines(dir, 2));
    requests.resize(std::min<size_t>(requests.size(), 3));
    for (const int32_t size : {2, 4}) {
      if (!check_ranks(config, size, 1).ok()) continue;
      if (size == 4 && !runs_all_schedules() && num_divided % 4 != 0) continue;
      CAPTURE(name);
      CAPTURE(size);
      ForkedRanksOptions ranks;
      ranks.tensor_size = size;
      LoadOptions options = rank_options(dir, config, num_divided % 2 == 0 ? DType::kF32 : DType::kBF16);
      options.cuda.deterministic = true;
      const auto divided = answers_of(*load_forked_ranks(ranks, config, options), requests);
      options.max_num_seqs = options.max_num_batched_tokens = 2;
      const auto backend = load_forked_ranks(ranks, config, options);
      CHECK((generate_at_random(*backend, requests, 2, 2, 1) == divided));
      ++num_divided;
    }
  }
  MESSAGE(num_divided << " divided");
  CHECK(num_divided >= 14);
}

TEST_CASE("rows are divided from where that saves time: sooner with more ranks, and with sums in their order") {
  int64_t before = INT64_MAX;
  for (const int64_t size : {2, 4, 8}) {
    const DividedRowsCase in_order{size, 8192, 2, /*deterministic=*/true}, by_nccl{size, 8192, 2, false};
    const int64_t rows = min_divided_rows(in_order, 12);
    CHECK(rows < before);
    CHECK(rows < min_divided_rows(by_nccl, 12));
    CHECK(min_divided_rows({size, 1024, 2, true}, 12) > 7 * rows);
    CHECK(saved_us_of_row(in_order) * static_cast<double>(rows) >= 12);
    CHECK(saved_us_of_row(in_order) * static_cast<double>(rows - 1) < 12);
    before = rows;
  }
  CHECK(before < 64);
  CHECK(min_divided_rows({1, 8192, 2, true}, 12) == INT64_MAX);  // nothing is saved
  for (const int64_t size : {1, 2, 3, 8})
    for (const int64_t rows : {0, 1, 2, 3, 7, 8, 9, 64}) {
      int64_t next = 0;
      for (int64_t rank = 0; rank < size; ++rank) {
        const Range own = rows_of_rank(rows, size, rank);
        CHECK(own.begin == next);
        CHECK(own.count() <= rows_of_each(rows, size));
        next = own.end;
      }
      CHECK(next == rows);
    }
}

TEST_CASE("sampling: what is drawn, also over an int8 KV cache, is what one GPU draws") {
  const std::string dir = fixture("llama-gqa");
  const ModelConfig config = config_of_dir(dir);
  LoadOptions options = rank_options(dir, config, DType::kF32);
  options.cuda.deterministic = true;
  SUBCASE("fp32") {}
  SUBCASE("int8") { options.kv_cache_dtype = DType::kI8; }
  auto requests = requests_of(short_lines(dir, 8));
  for (size_t i = 0; i < requests.size(); ++i) {
    SampleRow& s = requests[i].sampling;
    s.temperature = 0.8f;
    s.rng = {7, i};
    if (i % 3 == 1) s.top_k = 20;
    if (i % 3 == 2) s.top_p = 0.9f;
    if (i % 2 == 1) s.min_p = 0.05f;
  }
  const auto alone = loaded(make_cuda_backend(0), config, options);
  const auto expected = answers_of(*alone, requests);
  const auto actual = answers_of(*load_forked_ranks({}, config, options), requests, 2);
  for (size_t i = 0; i < requests.size(); ++i) CHECK(actual[i].tokens == expected[i].tokens);
}

TEST_CASE("int8 weights: about as far from the reference as on one GPU") {
  const std::string dir = fixture("llama-gqa");
  const ModelConfig config = config_of_dir(dir);
  LoadOptions options = rank_options(dir, config, DType::kF32);
  options.cpu.quantization = Quantization::kInt8;
  const auto lines = short_lines(dir, 1);
  const auto error_of = [&](Backend& backend) {
    double sum = 0;
    const auto answers = answers_of(backend, requests_of(lines));
    for (size_t i = 0; i < lines.size(); ++i) {
      if (answers[i].tokens != lines[i].at("token_ids").get<std::vector<TokenId>>()) continue;
      sum += std::abs(answers[i].logprobs[0] - lines[i].at("logprobs")[0].get<double>());
    }
    return sum;
  };
  const double alone = error_of(*loaded(make_cuda_backend(0), config, options));
  CHECK(error_of(*load_forked_ranks({}, config, options)) <= 2 * alone + 0.01);
}

TEST_CASE("ranks have their share of the weights and no more") {
  const std::string dir = fixture("llama-gqa");
  const ModelConfig config = config_of_dir(dir);
  const LoadOptions options = rank_options(dir, config, DType::kBF16);
  const auto alone = loaded(make_cuda_backend(0), config, options);
  const auto divided = load_forked_ranks({}, config, options);
  CHECK(static_cast<double>(divided->info().weight_bytes) <= 1.1 * static_cast<double>(alone->info().weight_bytes));
  CHECK(divided->info().kv.bytes_per_block() == alone->info().kv.bytes_per_block());
}

TEST_CASE("a rank that is killed, and one that stops, end the step of all with a line that names it") {
  const std::string dir = fixture("llama-gqa");
  const ModelConfig config = config_of_dir(dir);
  for (const int signal : {SIGKILL, SIGSTOP}) {
    CAPTURE(signal);
    ForkedRanksOptions options;
    options.patience_ms = 3000;
    ForkedRanks ranks = make_forked_ranks(options);
    REQUIRE(ranks.backend->load(config, rank_options(dir, config, DType::kF32)).ok());
    const GenerateRequest request = requests_of(short_lines(dir)).back();
    std::vector<BlockId> blocks = {0, 1, 2, 3, 4, 5};
    const StepPlan plan =
        PlanBuilder(16).add(request.prompt, 0, static_cast<int32_t>(request.prompt.size()), blocks, {}).plan();
    check_signal_is_named(ranks, plan, signal);
  }
}

}  // namespace llmb::test
