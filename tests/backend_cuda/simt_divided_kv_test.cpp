// A model whose keys and values several GPUs divide by position, each rank a process on the host layer: the bytes of one
// GPU, with parts of layers those of as many without it, whatever the model, the timing and the schedule; and each rank
// keeps its share of the pool.
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <cmath>
#include <filesystem>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "core/rank_part.h"
#include "core/shared_prefixes.h"
#include "kernels/simt/settings.h"
#include "tests/backend_cuda/ranks_job.h"
#include "tests/support/all_schedules.h"
#include "tests/support/forked_ranks.h"
#include "tests/support/golden.h"
#include "tests/support/scheduled_run.h"

namespace llmb::test {
namespace {

ForkedRanksOptions grid(int32_t num_slices, int32_t tensor_size = 1, int32_t num_stages = 1, uint64_t seed = 0) {
  ForkedRanksOptions ranks = row_ranks(num_slices, tensor_size, num_stages, seed);
  ranks.divides_kv = num_slices > 1;
  return ranks;
}

// For longer texts than the model was made for.
ModelConfig long_config(const std::string& dir, int32_t max_model_len) {
  ModelConfig config = config_of_dir(dir);
  config.max_position_embeddings = std::max(config.max_position_embeddings, max_model_len);
  return config;
}

LoadOptions long_options(const std::string& dir, const ModelConfig& config, DType dtype, int32_t max_model_len,
                         int32_t num_slices) {
  LoadOptions o = options_for(dir, config, dtype);
  o.max_model_len = max_model_len;
  o.max_num_batched_tokens = 128;
  o.block_size = num_slices > 1 ? num_slices * kSliceTokens : 16;
  o.num_blocks_override = 40;
  return o;
}

std::vector<Generated> answers_of_one(const ModelConfig& config, LoadOptions options,
                                      const std::vector<GenerateRequest>& requests) {
  options.block_size = 16, options.num_blocks_override = 200;
  return generate_at_random(*loaded(make_cuda_backend(0), config, options), requests, 128, 6, 1);
}

StepOutput output_of(Backend& backend, const StepPlan& plan) {
  StepOutput output;
  check_ok(backend.submit(plan));
  check_ok(backend.wait(&output));
  return output;
}

SchedulerConfig long_scheduler(int32_t max_num_seqs, int32_t max_num_batched_tokens, int32_t max_model_len) {
  SchedulerConfig config = scheduler_for(max_num_seqs, max_num_batched_tokens);
  config.max_model_len = max_model_len;
  return config;
}

}  // namespace

TEST_CASE("no golden model is refused by two and three GPUs, and those of each kind give the bytes of one") {
  const std::set<std::string> kinds = {"llama-gqa", "gemma2",  "gpt_oss", "qwen2-window", "bloom", "deepseek_v3",
                                       "llama4",    "gemma4",  "lfm2"};
  constexpr int32_t kMaxModelLen = 320;
  int num_divided = 0;
  for (const std::string& dir : golden_model_dirs()) {
    const std::string name = std::filesystem::path(dir).filename().string();
    CAPTURE(name);
    const ModelConfig config = long_config(dir, kMaxModelLen);
    const int32_t size = 2 + num_divided % 2;
    CHECK(check_ranks(config, 1, 1, size).ok());
    if (!runs_all_schedules() && !kinds.contains(name)) continue;
    if (config.learned_positions) continue;  // its table has fewer
    LoadOptions options = long_options(dir, config, DType::kBF16, kMaxModelLen, size);
    const bool may_have_codes = !config.has_latent() && !config.heads_differ();
    if (may_have_codes) options.kv_cache_dtype = std::vector{DType::kBF16, DType::kI8, DType::kF8}[num_divided % 3];
    const auto ranks = load_forked_ranks(grid(size, 1, 1, 1 + static_cast<uint64_t>(num_divided)), config, options);
    const auto requests = requests_for(config, 6, {5, 252});
    const auto expected = answers_of_one(config, options, requests);
    CHECK((generate_at_random(*ranks, requests, 100, 4, 2) == expected));
    // Layers with the keys and values of earlier ones, of prompts that are in one step.
    if (name == "gemma4") CHECK((generate_one_by_one(*ranks, requests, 128) == expected));
    ++num_divided;
  }
  MESSAGE(num_divided << " divided");
  CHECK(num_divided >= 7);
}

TEST_CASE("prompts and answers around borders of slices and of blocks: no bit changes, whatever the timing") {
  const std::string dir = fixture("llama-gqa");
  const ModelConfig config = long_config(dir, 544);
  const LoadOptions options = long_options(dir, config, DType::kBF16, 544, 2);
  const auto requests = requests_for(config, 3, {1, 255, 256, 257, 511, 512, 513});
  const auto expected = answers_of_one(config, options, requests);
  const uint64_t num_runs = runs_all_schedules() ? 10 : 1;
  for (uint64_t seed = 1; seed <= num_runs; ++seed) {
    const auto ranks = load_forked_ranks(grid(2, 1, 1, seed), config, options);
    CHECK((generate_at_random(*ranks, requests, 128, 4, seed) == expected));
  }
}

TEST_CASE("beside parts of layers and stages: the bytes of as many without it") {
  const std::string dir = fixture("llama-gqa");
  const ModelConfig config = long_config(dir, 320);
  for (const DType kv_dtype : {DType::kF32, DType::kI8}) {
    LoadOptions options = long_options(dir, config, DType::kF32, 320, 2), whole = options;
    options.kv_cache_dtype = whole.kv_cache_dtype = kv_dtype;
    whole.block_size = 16, whole.num_blocks_override = 100;
    const auto requests = requests_for(config, 4, {4, 254, 300});
    if (kv_dtype == DType::kI8) {
      const auto of_two = generate_at_random(*load_forked_ranks(grid(1, 2), config, whole), requests, 100, 6, 1);
      CHECK((generate_at_random(*load_forked_ranks(grid(2, 2, 1, 3), config, options), requests, 90, 4, 2) == of_two));
    } else {
      const auto of_one = answers_of_one(config, options, requests);
      CHECK((generate_at_random(*load_forked_ranks(grid(2, 1, 2, 4), config, options), requests, 90, 4, 2) == of_one));
    }
  }
}

TEST_CASE("blocks that are copied, swapped, read and written: each rank does so with its slices") {
  const std::string dir = fixture("llama-gqa");
  const ModelConfig config = long_config(dir, 320);
  std::vector<TokenId> tokens, others;
  for (int32_t i = 0; i < 301; ++i) tokens.push_back((7 * i + 3) % 96), others.push_back((5 * i + 1) % 96);
  SampleRow greedy;
  greedy.num_logprobs = 3;
  for (const DType kv_dtype : {DType::kBF16, DType::kF8}) {
    CAPTURE(std::string(dtype_name(kv_dtype)));
    LoadOptions options = long_options(dir, config, DType::kBF16, 320, 2);
    options.kv_cache_dtype = kv_dtype;
    options.max_num_batched_tokens = 320;
    options.swap_space_gib = 1;
    LoadOptions whole = options;
    whole.block_size = 16;
    std::vector<BlockId> table(20);
    std::iota(table.begin(), table.end(), 0);
    const auto alone = loaded(make_cuda_backend(0), config, whole);
    output_of(*alone, PlanBuilder(16).add(tokens, 0, 300, table, greedy).plan());
    const StepOutput expected = output_of(*alone, PlanBuilder(16).add(tokens, 300, 1, table, greedy).plan());

    const auto ranks = load_forked_ranks(grid(2, 1, 1, 3), config, options);
    output_of(*ranks, PlanBuilder(512).add(tokens, 0, 300, {0}, greedy).plan());
    StepPlan leaves = PlanBuilder(512).add(others, 0, 301, {0}, greedy).plan();
    leaves.swaps_out = {{0, 0, 5}};
    leaves.block_copies = {{0, 0, 2}};
    output_of(*ranks, leaves);
    StepPlan comes_back = PlanBuilder(512).add(tokens, 300, 1, {1}, greedy).plan();
    comes_back.swaps_in = {{0, 5, 1}};
    CHECK(output_of(*ranks, comes_back).top_logprobs == expected.top_logprobs);
    CHECK(output_of(*ranks, PlanBuilder(512).add(tokens, 300, 1, {2}, greedy).plan()).top_logprobs ==
          expected.top_logprobs);
    std::vector<uint8_t> bytes(static_cast<size_t>(ranks->info().block_bytes));
    CHECK(bytes.size() == 32 * static_cast<size_t>(alone->info().block_bytes));
    REQUIRE(ranks->read_blocks(std::vector<BlockId>{2}, -1, bytes));
    ranks->write_host_blocks(std::vector<BlockId>{1}, -1, bytes);
    StepPlan arrives = PlanBuilder(512).add(tokens, 300, 1, {4}, greedy).plan();
    arrives.swaps_in = {{0, 1, 4}};
    CHECK(output_of(*ranks, arrives).top_logprobs == expected.top_logprobs);
  }
}

TEST_CASE("choices, prompts that begin alike, and verified drafts in chains and trees: no bit changes") {
  const std::string dir = fixture("llama-gqa");
  const ModelConfig config = long_config(dir, 544);
  LoadOptions options = long_options(dir, config, DType::kBF16, 544, 2);
  options.max_num_drafts = 14;
  LoadOptions whole = options;
  whole.block_size = 16, whole.num_blocks_override = 200;
  std::vector<std::shared_ptr<const Request>> requests;
  for (const int32_t length : {2, 254, 510, 514, 514}) requests.push_back(request_with_choices(length, 2, 6));
  const ScheduledRun plain =
      run_scheduled(*loaded(make_cuda_backend(0), config, whole), long_scheduler(6, 128, 544), nullptr, requests);
  const auto ranks = loaded(std::make_unique<RanksAtWork>(grid(2, 1, 1, 9)), config, options);
  const ScheduledRun run = run_scheduled(*ranks, long_scheduler(6, 100, 544), nullptr, requests);
  CHECK((run.answers == plain.answers));
  CHECK(run.num_copies > 0);
  check_verified_drafts(*ranks, long_scheduler(6, 128, 544), requests, plain, 5);
}

TEST_CASE("a beginning that texts share is read once for all of them, and no further than they share it") {
  const std::string dir = fixture("llama-gqa");
  const ModelConfig config = long_config(dir, 640);
  LoadOptions options = long_options(dir, config, DType::kBF16, 640, 2), whole = options;
  options.max_num_batched_tokens = whole.max_num_batched_tokens = 640;
  whole.block_size = 16, whole.num_blocks_override = 80;
  constexpr int32_t kTexts = 4, kShared = 512, kLength = 600;
  SampleRow greedy;
  greedy.num_logprobs = 3;
  std::vector<std::vector<TokenId>> texts(kTexts);
  for (int32_t t = 0; t < kTexts; ++t)
    for (int32_t i = 0; i <= kLength; ++i) texts[t].push_back((7 * i + (i < kShared ? 0 : 1 + 5 * t)) % 96);
  // The texts with their own blocks behind the shared ones, then a row of each in one step.
  const auto outputs = [&](Backend& backend, int32_t block_size) {
    const int32_t num_shared = kShared / block_size;
    const auto num_own = static_cast<int32_t>(ceil_div(kLength + 1, block_size)) - num_shared;
    PlanBuilder last(block_size);
    for (int32_t t = 0; t < kTexts; ++t) {
      std::vector<BlockId> table(static_cast<size_t>(num_shared + num_own));
      std::iota(table.begin(), table.begin() + num_shared, 0);
      std::iota(table.begin() + num_shared, table.end(), num_shared + t * num_own);
      const int32_t begin = t == 0 ? 0 : kShared;
      output_of(backend, PlanBuilder(block_size).add(texts[t], begin, kLength - begin, table, greedy).plan());
      last.add(texts[t], kLength, 1, table, greedy);
    }
    StepPlan plan = last.plan();
    find_shared_prefixes(&plan);
    return output_of(backend, plan).top_logprobs;
  };
  const auto expected = outputs(*loaded(make_cuda_backend(0), config, whole), 16);
  const uint64_t before = simt::num_runs("shared_paged_attention_kernel");
  CHECK(outputs(*load_forked_ranks(grid(2), config, options), 2 * kSliceTokens) == expected);
  CHECK(simt::num_runs("shared_paged_attention_kernel") > before);
}

// The next step's rows follow tokens in flight.
TEST_CASE("without --deterministic, steps that are planned ahead exchange states, too: one GPU's tokens") {
  const std::string dir = fixture("llama-gqa");
  const ModelConfig config = long_config(dir, 320);
  LoadOptions options = long_options(dir, config, DType::kF32, 320, 2), whole = options;
  options.cuda.deterministic = whole.cuda.deterministic = false;
  whole.block_size = 16;
  std::vector<std::shared_ptr<const Request>> requests;
  for (const int32_t length : {3, 252, 256}) requests.push_back(request_with_choices(length, 1, 8));
  const ScheduledRun expected =
      run_scheduled(*loaded(make_cuda_backend(0), config, whole), long_scheduler(4, 128, 320), nullptr, requests);
  const uint64_t before = simt::num_runs("join_pieces");
  const auto ranks = loaded(std::make_unique<RanksAtWork>(grid(2, 1, 1, 7)), config, options);
  const ScheduledRun run = run_scheduled(*ranks, long_scheduler(4, 100, 320), nullptr, requests);
  CHECK(simt::num_runs("join_pieces") > before);
  for (size_t i = 0; i < requests.size(); ++i) CHECK(run.answers[i][0].out.tokens == expected.answers[i][0].out.tokens);
}

// Decode steps exchange states of rows there, in layers without a window; the prompts' steps gather slices.
TEST_CASE("without --deterministic: one GPU's greedy tokens within rounding, also over latents that are expanded") {
  struct Case {
    std::string model;
    int32_t num_ranks;
    DType kv_dtype;
  };
  for (const Case& c : {Case{"llama-gqa", 2, DType::kF32}, Case{"llama-gqa", 3, DType::kI8},
                        Case{"gpt_oss", 2, DType::kF32}, Case{"gemma2", 2, DType::kF32},
                        Case{"deepseek_v3", 3, DType::kF32}}) {
    CAPTURE(c.model);
    CAPTURE(c.num_ranks);
    const std::string dir = fixture(c.model);
    const ModelConfig config = long_config(dir, 320);
    LoadOptions options = long_options(dir, config, DType::kF32, 320, c.num_ranks);
    options.kv_cache_dtype = c.kv_dtype;
    options.cuda.deterministic = false;
    const auto requests = requests_for(config, 5, {6, 254});
    const auto expected = answers_of_one(config, options, requests);
    const uint64_t num_expanded = simt::num_runs("expand"), num_joined = simt::num_runs("join_pieces");
    const auto ranks = load_forked_ranks(grid(c.num_ranks), config, options);
    const auto answers = generate_one_by_one(*ranks, requests, 128);
    if (c.model == "deepseek_v3") CHECK(simt::num_runs("expand") > num_expanded);
    CHECK(simt::num_runs("join_pieces") >= num_joined + 2 * 4);
    for (size_t i = 0; i < answers.size(); ++i) {
      CHECK(answers[i].tokens == expected[i].tokens);
      for (size_t t = 0; t < answers[i].logprobs.size(); ++t)
        CHECK(std::abs(answers[i].logprobs[t] - expected[i].logprobs[t]) <= 1e-4f);
    }
  }
}

TEST_CASE("a rank's memory is at most 1.1 times its share of the weights, keys and values of one GPU") {
  const auto used_bytes = [] { return static_cast<double>(simt::device_bytes_in_use()); };
  constexpr double kWorkspace = 32 << 20;  // of matrix products, on every GPU
  constexpr int kNumRanks = 2, kNumBlocks = 1000;
  const std::string dir = fixture("llama-gqa");
  const ModelConfig config = long_config(dir, 544);
  LoadOptions options = long_options(dir, config, DType::kBF16, 544, 1);
  options.num_blocks_override = kNumBlocks * kNumRanks * kSliceTokens / 16;  // so that they take most of it
  double of_one = 0, before = used_bytes();
  {
    const auto alone = loaded(make_cuda_backend(0), config, options);
    of_one = used_bytes() - before - kWorkspace;
  }
  options.num_blocks_override = kNumBlocks;
  options.block_size = kNumRanks * kSliceTokens;
  before = used_bytes();
  double* const of_ranks = static_cast<double*>(::mmap(nullptr, sizeof(double) * kNumRanks, PROT_READ | PROT_WRITE,
                                                       MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  REQUIRE(of_ranks != MAP_FAILED);
  ForkedRanksOptions ranks = grid(kNumRanks);
  ranks.has_loaded = [&](int rank) { of_ranks[rank] = used_bytes() - before - kWorkspace; };
  const auto together = load_forked_ranks(ranks, config, options);
  of_ranks[0] = used_bytes() - before - kWorkspace;
  for (int rank = 0; rank < kNumRanks; ++rank) {
    MESSAGE("rank " << rank << ": " << of_ranks[rank] / (of_one / kNumRanks) << " of its share");
    CHECK(of_ranks[rank] > 0.5 * of_one / kNumRanks);
    CHECK(of_ranks[rank] <= 1.1 * of_one / kNumRanks);
  }
  ::munmap(of_ranks, sizeof(double) * kNumRanks);
}

TEST_CASE("ranks with memory for half of a text each hold it, which one GPU does not") {
  const std::string dir = fixture("llama-gqa");
  const ModelConfig config = long_config(dir, 1500);
  LoadOptions options = long_options(dir, config, DType::kBF16, 1500, 1);
  options.num_blocks_override = 0;
  const int64_t of_token = make_kv_layout(config, 1, DType::kBF16, layer_groups(config, options)).bytes_per_token();
  options.kv_cache_bytes = of_token * 3 * kSliceTokens;
  CHECK(make_cuda_backend(0)->load(config, options).code() == StatusCode::kResourceExhausted);
  options.block_size = 2 * kSliceTokens;
  const auto ranks = load_forked_ranks(grid(2), config, options);
  CHECK(ranks->info().kv.num_blocks == 3);
  CHECK(ranks->info().kv.block_size == options.block_size);
}

}  // namespace llmb::test
