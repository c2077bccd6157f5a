#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/memory_limit.h"
#include "backend/make_backend.h"
#include "kernels/cpu/linear.h"
#include "tests/support/plan_builder.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace llmb::test {
namespace {

std::unique_ptr<Backend> loaded(const ModelConfig& config, const LoadOptions& options) {
  auto backend = make_cpu_backend();
  const Status status = backend->load(config, options);
  REQUIRE_MESSAGE(status.ok(), status.message());
  return backend;
}

std::vector<GenerateRequest> mixed_requests(const ModelConfig& config) {
  std::mt19937_64 random(9);
  std::vector<GenerateRequest> requests;
  for (const int length : {1, 3, 15, 16, 17, 31, 32, 33, 60}) {
    GenerateRequest& r = requests.emplace_back();
    for (int i = 0; i < length; ++i) r.prompt.push_back(static_cast<TokenId>(random() % config.vocab_size));
    r.num_tokens = 20;
    r.sampling.num_logprobs = 5;
    r.sampling.temperature = length % 2 == 0 ? 0.0f : 0.9f;
    r.sampling.top_p = 0.95f;
    r.sampling.rng = {42, static_cast<uint64_t>(length)};
  }
  return requests;
}

TEST_CASE("tokens and log probabilities are bit-identical for any schedule, block size and number of threads") {
  for (const DType kv_dtype : {DType::kF32, DType::kBF16, DType::kI8, DType::kF8, DType::kI4}) {
    CAPTURE(dtype_name(kv_dtype));
    ModelConfig config = tiny_config();
    config.dtype = kv_dtype == DType::kF32 ? DType::kF32 : DType::kBF16;
    const TempDir dir;
    write_model(dir.path(), config, random_tensors(config, 21));
    LoadOptions options = dummy_options();
    options.kv_cache_dtype = kv_dtype;
    if (kv_dtype == DType::kI8) options.dtype = DType::kBF16;
    options.load_format = LoadFormat::kAuto;
    options.model_dir = dir.path();
    const auto requests = mixed_requests(config);
    options.num_threads = 1;
    options.block_size = kv_dtype == DType::kI4 ? 32 : 16;
    const auto expected = generate_one_by_one(*loaded(config, options), requests, 64);
    for (const int threads : {1, 2, 3})
      for (const int block_size : {16, 5}) {
        options.num_threads = threads;
        options.block_size = kv_dtype != DType::kI4 ? block_size : block_size == 16 ? 64 : 32;
        const auto backend = loaded(config, options);
        for (uint64_t seed = 0; seed < 4; ++seed) {
          CAPTURE(threads);
          CAPTURE(block_size);
          CAPTURE(seed);
          const bool same = generate_at_random(*backend, requests, seed % 2 == 0 ? 64 : 7, 9, seed) == expected;
          CHECK(same);
        }
      }
  }
}

TEST_CASE("a step with more logits than one chunk holds gives every row what it gets alone") {
  ModelConfig config = tiny_config();
  config.vocab_size = 1 << 20;  // 16 rows a chunk
  config.hidden_size = 8;
  config.tie_word_embeddings = true;
  config.dtype = DType::kBF16;
  LoadOptions options = dummy_options();
  options.max_num_seqs = 20;
  const auto backend = loaded(config, options);
  std::vector<GenerateRequest> requests;
  PlanBuilder builder(16);
  for (int i = 0; i < 20; ++i) {
    GenerateRequest& r = requests.emplace_back();
    r.prompt = {i * 50000, i};
    r.sampling.num_logprobs = i % 3;
    builder.add(r.prompt, 0, 2, {i}, r.sampling);
  }
  const auto alone = generate_one_by_one(*backend, requests, 64);
  StepOutput out;
  REQUIRE(backend->submit(builder.plan()).ok());
  REQUIRE(backend->wait(&out).ok());
  REQUIRE(out.tokens.size() == 20);
  REQUIRE(out.top_start.size() == 21);
  for (int i = 0; i < 20; ++i) {
    CHECK(out.tokens[i] == alone[i].tokens[0]);
    CHECK(out.logprobs[i] == alone[i].logprobs[0]);
    CHECK(out.top_start[i + 1] - out.top_start[i] == i % 3);
    for (int k = 0; k < i % 3; ++k) {
      CHECK(out.top_tokens[out.top_start[i] + k] == alone[i].top_tokens[0][k]);
      CHECK(out.top_logprobs[out.top_start[i] + k] == alone[i].top_logprobs[0][k]);
    }
  }
}

TEST_CASE("a sequence with NaN logits is reported, its neighbours and later users of its blocks are not affected") {
  const ModelConfig config = tiny_config();
  TestTensors tensors = random_tensors(config, 3);
  tensors["model.embed_tokens.weight"].values[7 * config.hidden_size] = NAN;
  const TempDir dir;
  write_model(dir.path(), config, tensors);
  LoadOptions options = dummy_options();
  options.load_format = LoadFormat::kAuto;
  options.model_dir = dir.path();
  const auto backend = loaded(config, options);
  const std::vector<TokenId> good = {1, 2, 3}, bad = {1, 7, 3};
  const auto run = [&](const StepPlan& plan) {
    StepOutput out;
    REQUIRE(backend->submit(plan).ok());
    REQUIRE(backend->wait(&out).ok());
    return out;
  };
  const SampleRow row{.num_logprobs = 0};
  const StepOutput alone = run(PlanBuilder(16).add(good, 0, 3, {0}, row).plan());
  const StepOutput both = run(PlanBuilder(16).add(bad, 0, 3, {1}, row).add(good, 0, 3, {0}, row).plan());
  CHECK(both.is_finite == std::vector<uint8_t>{0, 1});
  CHECK(both.token_start == std::vector<int32_t>{0, 0, 1});
  CHECK(both.tokens[0] == alone.tokens[0]);
  CHECK(both.logprobs[0] == alone.logprobs[0]);
  const StepOutput reused = run(PlanBuilder(16).add(good, 0, 3, {1}, row).plan());
  CHECK(reused.is_finite == std::vector<uint8_t>{1});
  CHECK(reused.logprobs[0] == alone.logprobs[0]);
}

TEST_CASE("a step without sample rows fills the cache and returns nothing") {
  const ModelConfig config = tiny_config();
  const auto backend = loaded(config, dummy_options());
  const std::vector<TokenId> prompt = {4, 5, 6, 7};
  const auto expected = generate_one_by_one(*backend, {{prompt, 1, {}}}, 64);
  StepOutput out;
  out.tokens = {99};
  const StepPlan first = PlanBuilder(16).add(prompt, 0, 3, {5}, std::nullopt).plan();
  REQUIRE(backend->submit(first).ok());
  REQUIRE(backend->wait(&out).ok());
  CHECK(out.tokens.empty());
  CHECK(out.top_start == std::vector<int32_t>{0});
  const StepPlan second = PlanBuilder(16).add(prompt, 3, 1, {5}, SampleRow{}).plan();
  REQUIRE(backend->submit(second).ok());
  REQUIRE(backend->wait(&out).ok());
  CHECK(out.tokens == expected[0].tokens);
}

TEST_CASE("a plan that would reach outside the backend's memory is refused, and the next one runs") {
  const ModelConfig config = tiny_config();
  LoadOptions options = dummy_options();
  options.max_num_seqs = 2;
  options.max_num_batched_tokens = 8;
  const auto backend = loaded(config, options);
  const int32_t blocks = backend->info().kv.num_blocks;
  const std::vector<TokenId> tokens = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  const auto refused = [&](const StepPlan& plan) { return backend->submit(plan).code() == StatusCode::kInternal; };
  CHECK(refused(PlanBuilder(16).add({0}, 0, 1, {blocks}, {}).plan()));
  CHECK(refused(PlanBuilder(16).add({0}, 0, 1, {-1}, {}).plan()));
  CHECK(refused(PlanBuilder(8).add({0}, 0, 1, {0}, {}).plan()));
  CHECK(refused(PlanBuilder(16).add({config.vocab_size}, 0, 1, {0}, {}).plan()));
  CHECK(refused(PlanBuilder(16).add({-1}, 0, 1, {0}, {}).plan()));
  CHECK(refused(PlanBuilder(16).add(tokens, 0, 9, {0}, {}).plan()));
  const SampleRow row;
  CHECK(refused(PlanBuilder(16).add({0}, 0, 1, {0}, row).add({0}, 0, 1, {1}, row).add({0}, 0, 1, {2}, row).plan()));
  StepPlan drafts = PlanBuilder(16).add({0, 1}, 0, 2, {0}, row).plan();  // of which the second is one
  drafts.sample_rows.insert(drafts.sample_rows.begin(), drafts.sample_rows[0]);
  drafts.sample_rows[0].token_row = 0;
  drafts.groups[0].row_end = 2;
  drafts.groups[0].mode = SampleMode::kVerify;
  REQUIRE(validate_step_plan(drafts, blocks).ok());
  CHECK(refused(drafts));  // the backend was loaded for none
  const std::vector<TokenId> longest(97, 1);
  const std::vector<BlockId> table = {0, 1, 2, 3, 4, 5, 6};
  CHECK(refused(PlanBuilder(16).add(longest, 96, 1, table, row).plan()));
  StepOutput out;
  const StepPlan last = PlanBuilder(16).add(longest, 95, 1, table, row).plan();
  REQUIRE(backend->submit(last).ok());
  REQUIRE(backend->wait(&out).ok());
  CHECK(out.tokens.size() == 1);
}

TEST_CASE("submit returns at once, wait gives that step's result; misuse is a programmer's error") {
  const ModelConfig config = tiny_config();
  const auto backend = loaded(config, dummy_options());
  StepOutput out;
  CHECK_THROWS_AS(backend->wait(&out).ok(), CheckFailure);
  const StepPlan plan = PlanBuilder(16).add({1}, 0, 1, {0}, SampleRow{}).plan();
  REQUIRE(backend->info().max_plans_in_flight == 2);
  REQUIRE(backend->submit(plan).ok());
  REQUIRE(backend->submit(plan).ok());
  CHECK_THROWS_AS(backend->submit(plan).ok(), CheckFailure);
  REQUIRE(backend->wait(&out).ok());
  CHECK(out.tokens.size() == 1);
  REQUIRE(backend->wait(&out).ok());
  CHECK_THROWS_AS(backend->wait(&out).ok(), CheckFailure);
  CHECK_THROWS_AS(make_cpu_backend()->submit(plan).ok(), CheckFailure);
  // Destroyed with steps in flight: no thread is left behind.
  const auto other = loaded(config, dummy_options());
  REQUIRE(other->submit(plan).ok());
  REQUIRE(other->submit(plan).ok());
}

TEST_CASE("two plans in flight: the second computes what the first samples, and outputs come in order") {
  const ModelConfig config = tiny_config();
  const auto backend = loaded(config, dummy_options());
  const std::vector<std::vector<TokenId>> prompts = {{4, 5, 6, 7}, {8, 9}};
  const SampleRow row{.num_logprobs = 2};
  constexpr int kNumTokens = 12;
  const auto expected =
      generate_one_by_one(*backend, {{prompts[0], kNumTokens, row}, {prompts[1], kNumTokens, row}}, 64);
  // The prompts change places in every plan: row 0 of one is row 1 of the next.
  std::vector<StepPlan> plans;
  for (int step = 0; step < kNumTokens; ++step) {
    PlanBuilder builder(16);
    for (int place = 0; place < 2; ++place) {
      const int i = (place + step) % 2;
      std::vector<TokenId> tokens = prompts[i];
      tokens.resize(tokens.size() + step, unseen_token(1 - place));
      const auto num_new = step == 0 ? static_cast<int32_t>(tokens.size()) : 1;
      builder.add(tokens, static_cast<int32_t>(tokens.size()) - num_new, num_new, {i}, row);
    }
    plans.push_back(builder.plan());
  }
  StepOutput out;
  REQUIRE(backend->submit(plans[0]).ok());
  for (int step = 0; step < kNumTokens; ++step) {
    if (step + 1 < kNumTokens) REQUIRE(backend->submit(plans[step + 1]).ok());
    REQUIRE(backend->wait(&out).ok());
    for (int place = 0; place < 2; ++place) {
      const int i = (place + step) % 2;
      CHECK(out.tokens[place] == expected[i].tokens[step]);
      CHECK(out.logprobs[place] == expected[i].logprobs[step]);
    }
  }
  // With nothing in flight there is no token to wait for; with one plan in flight, none beyond its rows.
  CHECK(backend->submit(plans[1]).code() == StatusCode::kInternal);
  REQUIRE(backend->submit(plans[0]).ok());
  CHECK(backend->submit(PlanBuilder(16).add({unseen_token(2)}, 0, 1, {0}, row).plan()).code() == StatusCode::kInternal);
  REQUIRE(backend->wait(&out).ok());  // an error of submit() leaves what was in flight
  CHECK(out.tokens[0] == expected[0].tokens[0]);
}

TEST_CASE("info and limits say what was loaded") {
  ModelConfig config = tiny_config();
  config.dtype = DType::kBF16;
  const auto backend = loaded(config, dummy_options());
  CHECK(backend->info().kind == DeviceKind::kCpu);
  CHECK(backend->info().device.starts_with("cpu ("));
  CHECK(backend->info().device.ends_with(", 2 threads)"));
  CHECK(backend->info().weight_bytes >= config.num_matmul_params() * 2);
  CHECK(backend->info().kv.num_layers == config.num_hidden_layers);
  CHECK(backend->info().kv.num_blocks == 16 * 6);  // 16 sequences of 96 tokens
  const MachineLimits limits = backend->measure_limits();
  CHECK(limits.flops_per_s > 0);
  CHECK(limits.bytes_per_s > 0);
}

TEST_CASE("the dtype of activations: float32, or bfloat16 over bf16 weights") {
  ModelConfig config = tiny_config();
  LoadOptions o = dummy_options();
  const auto message = [&] { return make_cpu_backend()->load(config, o).message(); };
  const auto refuses = [&](const std::string& reason) { return message().find(reason) != std::string::npos; };
  for (const DType stored : {DType::kF32, DType::kF16, DType::kBF16}) {
    config.dtype = stored;
    o.dtype = DType::kF32;
    CHECK(message() == "");
    o.dtype = DType::kF16;
    CHECK(refuses("dtype float16"));
    o.dtype = DType::kBF16;
    if (stored == DType::kBF16) CHECK(message() == "");
    else CHECK(refuses(std::string("these are ") + dtype_name(stored)));
  }
  CHECK(cpu_activation_dtype(config, Quantization::kNone) == (cpu::has_fast_bf16() ? DType::kBF16 : DType::kF32));
  CHECK(cpu_activation_dtype(config, Quantization::kInt8) == DType::kF32);
  o.cpu.quantization = Quantization::kInt8;
  CHECK(refuses("not with quantization int8"));
  o.cpu.quantization = Quantization::kFp8;
  CHECK(refuses("quantization fp8"));
}

TEST_CASE("what cannot fit or makes no sense is refused before anything is loaded") {
  const auto code = [](const ModelConfig& config, const LoadOptions& options) {
    return make_cpu_backend()->load(config, options).code();
  };
  ModelConfig huge = tiny_config();
  huge.hidden_size = 1 << 18;
  huge.intermediate_size = 1 << 20;
  huge.num_hidden_layers = 1024;
  CHECK(available_memory_bytes() > 0);
  CHECK(code(huge, dummy_options()) == StatusCode::kResourceExhausted);
  const ModelConfig config = tiny_config();
  LoadOptions o = dummy_options();
  o.max_model_len = config.max_position_embeddings + 1;
  CHECK(code(config, o) == StatusCode::kInvalidArgument);
  o = dummy_options();
  o.block_size = 0;
  CHECK(code(config, o) == StatusCode::kInvalidArgument);
  o = dummy_options();
  o.max_num_seqs = 0;
  CHECK(code(config, o) == StatusCode::kInvalidArgument);
  o = dummy_options();
  o.load_format = LoadFormat::kAuto;
  o.model_dir = "/nonexistent";
  CHECK(code(config, o) == StatusCode::kNotFound);
}

TEST_CASE("make_backend knows its names") {
  for (const char* name : {"auto", "cpu", "ledger"}) {
    const auto backend = make_backend(name);
    REQUIRE(backend.ok());
    CHECK(*backend != nullptr);
  }
  // Without a GPU, or in a build without CUDA, the message says what to do instead.
  const auto gpu = make_backend("cuda:0");
  if (!gpu.ok()) CHECK(gpu.status().message().find("--device cpu") != std::string::npos);
  for (const char* name : {"tpu", "cuda:", "cuda:x", "cuda:-1", "cudax", ""})
    CHECK(make_backend(name).status().code() == StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace llmb::test
