// The whole backend where prompts go through the attention kernels for Hopper: the answers stay what they were. Those
// kernels have heads of 64 and 128 channels in 16 bits; models of smaller heads are widened here, which changes none of
// what they compute.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "kernels/cuda/hopper.h"
#include "model/config_loader.h"
#include "tests/support/golden.h"
#include "tests/support/plan_builder.h"
#include "tests/support/skip.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#ifdef LLMB_SIMT
#include "kernels/simt/settings.h"
#endif

namespace llmb::test {
namespace {

constexpr int32_t kMaxNumBatchedTokens = 96;

// Whether there is a device for these tests; a message where there is none.
bool have_hopper() {
  if (cuda::has_hopper_code(nullptr)) return true;
  skip("no device of compute capability 9.0, or no code for it");
  return false;
}

// How often the kernels for Hopper have run; on a device nobody counts.
uint64_t num_hopper_runs() {
#ifdef LLMB_SIMT
  return simt::num_runs("wgmma_paged_attention_kernel");
#else
  return 0;
#endif
}

void check_runs([[maybe_unused]] uint64_t before, [[maybe_unused]] bool expected) {
#ifdef LLMB_SIMT
  CHECK((num_hopper_runs() > before) == expected);
#endif
}

// [num_heads * head_dim, columns], or its transpose, with zeros after each head's channels.
TestTensor widened(const TestTensor& tensor, int32_t head_dim, int32_t new_dim, bool heads_in_columns) {
  const int64_t columns = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
  const int64_t before = heads_in_columns ? tensor.shape[0] : 1, after = heads_in_columns ? 1 : columns;
  const int64_t num_heads = (heads_in_columns ? columns : tensor.shape[0]) / head_dim;
  TestTensor out{tensor.shape, {}};
  out.shape[heads_in_columns ? 1 : 0] = num_heads * new_dim;
  out.values.assign(static_cast<size_t>(before * num_heads * new_dim * after), 0);
  for (int64_t i = 0; i < before * num_heads; ++i)
    std::copy_n(tensor.values.begin() + i * head_dim * after, head_dim * after,
                out.values.begin() + i * new_dim * after);
  return out;
}

// The model of `dir` with heads of new_dim channels, of which all but the first head_dim are zero.
ModelConfig widen_heads(const std::string& dir, int32_t new_dim, const std::string& out_dir) {
  ModelConfig config = load_model_config(dir).value();
  const int32_t head_dim = config.head_dim;
  TestTensors tensors = read_tensors(dir);
  for (auto& [name, tensor] : tensors) {
    if (name.find(".o_proj.weight") != std::string::npos) tensor = widened(tensor, head_dim, new_dim, true);
    for (const char* projection : {".q_proj.", ".k_proj.", ".v_proj."})
      if (name.find(projection) != std::string::npos) tensor = widened(tensor, head_dim, new_dim, false);
  }
  for (RopeConfig& rope : config.ropes) rope.rotary_dim = config.rotary_dim(rope);
  config.attention_scale = config.score_scale(0);
  config.head_dim = new_dim;
  write_model(out_dir, config, tensors);
  return config;
}

LoadOptions load_options(const std::string& dir, const ModelConfig& config, DType dtype) {
  LoadOptions options;
  options.model_dir = dir;
  options.max_num_seqs = 8;
  options.max_num_batched_tokens = kMaxNumBatchedTokens;
  options.max_model_len = std::min(config.max_position_embeddings, 128);
  options.num_blocks_override = 64;
  options.num_threads = 1;
  options.dtype = dtype;
  options.kv_cache_dtype = dtype;  // the CPU would take bfloat16
  return options;
}

std::vector<std::vector<TokenId>> tokens_of(const std::vector<Generated>& answers) {
  std::vector<std::vector<TokenId>> tokens;
  for (const Generated& answer : answers) tokens.push_back(answer.tokens);
  return tokens;
}

struct GoldenAnswers {
  std::vector<GenerateRequest> requests;
  std::vector<std::vector<TokenId>> tokens;
};

GoldenAnswers golden_answers(const std::string& dir, size_t num_tokens) {
  GoldenAnswers golden;
  for (const auto& line : read_json_lines(dir + "/golden.jsonl")) {
    auto tokens = line.at("token_ids").get<std::vector<TokenId>>();
    tokens.resize(std::min(tokens.size(), num_tokens));
    GenerateRequest& r = golden.requests.emplace_back();
    r.prompt = line.at("prompt_token_ids").get<std::vector<TokenId>>();
    r.num_tokens = static_cast<int32_t>(tokens.size());
    golden.tokens.push_back(std::move(tokens));
  }
  return golden;
}

// Texts of the bundled model's tokenizer that are long enough for a tall unit of attention.
std::vector<GenerateRequest> bundled_requests(size_t count, int32_t num_tokens) {
  std::vector<GenerateRequest> requests;
  for (const auto& line : read_json_lines(source_dir() + "/data/fixtures/tokenizer-bundled.jsonl")) {
    const auto ids = line.at("ids").get<std::vector<TokenId>>();
    if (requests.size() == count || ids.size() < 23 || ids.size() > 70) continue;
    GenerateRequest& r = requests.emplace_back();
    r.prompt = ids;
    r.num_tokens = num_tokens;
  }
  return requests;
}

TEST_CASE("golden models with heads of 64 and 128: greedy tokens equal Hugging Face transformers, in any mixture") {
  if (!have_hopper()) return;
  struct Case {
    const char* model;
    int32_t head_dim;
  };
  for (const Case& c : {Case{"llama-gqa", 64}, {"llama-mqa-tied", 128}, {"mistral-window", 64}, {"gemma2", 64}}) {
    CAPTURE(c.model);
    const std::string dir = source_dir() + "/data/fixtures/models/" + c.model;
    const TempDir wide;
    const ModelConfig config = widen_heads(dir, c.head_dim, wide.path());
    const auto backend = loaded(make_cuda_backend(0), config, load_options(wide.path(), config, DType::kF16));
    const GoldenAnswers golden = golden_answers(dir, 5);
    uint64_t before = num_hopper_runs();
    CHECK(tokens_of(generate_one_by_one(*backend, golden.requests, kMaxNumBatchedTokens)) == golden.tokens);
    check_runs(before, true);
    before = num_hopper_runs();
    CHECK(tokens_of(generate_at_random(*backend, golden.requests, kMaxNumBatchedTokens, 8, /*seed*/ 3)) ==
          golden.tokens);
    check_runs(before, true);
  }
}

TEST_CASE("the bundled model with heads of 64: greedy tokens equal the CPU backend's, prompts beside decodes") {
  if (!have_hopper()) return;
  const std::string dir = source_dir() + "/data/model";
  const TempDir wide;
  const ModelConfig narrow = load_model_config(dir).value(), config = widen_heads(dir, 64, wide.path());
  const auto requests = bundled_requests(4, 8);
  REQUIRE(requests.size() == 4);
  const auto cpu = loaded(make_cpu_backend(), narrow, load_options(dir, narrow, DType::kF32));
  const auto expected = tokens_of(generate_one_by_one(*cpu, requests, kMaxNumBatchedTokens));
  const auto gpu = loaded(make_cuda_backend(0), config, load_options(wide.path(), config, DType::kF16));
  const uint64_t before = num_hopper_runs();
  CHECK(tokens_of(generate_at_random(*gpu, requests, kMaxNumBatchedTokens, 8, 3)) == expected);
  check_runs(before, true);
}

TEST_CASE("decode steps, deterministic runs, float32 and other devices go without these kernels") {
  if (!have_hopper()) return;
  const std::string dir = source_dir() + "/data/fixtures/models/llama-gqa";
  const TempDir wide;
  const ModelConfig config = widen_heads(dir, 64, wide.path());
  const GoldenAnswers golden = golden_answers(dir, 2);
  const auto answers = [&](Backend& backend) {
    return tokens_of(generate_one_by_one(backend, golden.requests, kMaxNumBatchedTokens));
  };
  const LoadOptions options = load_options(wide.path(), config, DType::kF16);
  uint64_t before = num_hopper_runs();
  LoadOptions deterministic = options;
  deterministic.cuda.deterministic = true;
  CHECK(answers(*loaded(make_cuda_backend(0), config, deterministic)) == golden.tokens);
  CHECK(answers(*loaded(make_cuda_backend(0), config, load_options(wide.path(), config, DType::kF32))) ==
        golden.tokens);
  check_runs(before, false);

  const auto backend = loaded(make_cuda_backend(0), config, options);
  before = num_hopper_runs();  // loading runs the largest step
  std::vector<GenerateRequest> short_ones;
  for (const GenerateRequest& r : golden.requests)
    if (r.prompt.size() <= 32) short_ones.push_back(r);  // 64 rows of two heads each
  generate_one_by_one(*backend, short_ones, kMaxNumBatchedTokens);
  check_runs(before, false);
#ifdef LLMB_SIMT
  simt::set_compute_capability(8, 0);
  CHECK(answers(*loaded(make_cuda_backend(0), config, options)) == golden.tokens);
  check_runs(before, false);
  simt::set_compute_capability(9, 0);
#endif
}

// 72 query heads over one KV head: a single token's rows are more than 64.
TEST_CASE("a decode step of very many heads a KV head runs them too, replayed from its graph") {
  if (!have_hopper()) return;
  ModelConfig config = tiny_config();
  config.num_attention_heads = 72;
  config.num_key_value_heads = 1;
  config.head_dim = 64;
  config.num_hidden_layers = 1;
  const TempDir dir;
  write_model(dir.path(), config, random_tensors(config, 4));
  std::vector<GenerateRequest> requests(3);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt.assign(1 + i, static_cast<TokenId>(5 + 7 * i));
    requests[i].num_tokens = 4;
  }
  const auto cpu = loaded(make_cpu_backend(), config, load_options(dir.path(), config, DType::kF32));
  const auto gpu = loaded(make_cuda_backend(0), config, load_options(dir.path(), config, DType::kF16));
  const auto expected = tokens_of(generate_one_by_one(*cpu, requests, kMaxNumBatchedTokens));
  const uint64_t before = num_hopper_runs();
  CHECK(tokens_of(generate_one_by_one(*gpu, requests, kMaxNumBatchedTokens)) == expected);
  check_runs(before, true);
}

}  // namespace
}  // namespace llmb::test
