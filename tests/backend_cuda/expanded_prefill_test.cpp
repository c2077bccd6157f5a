// Prompts whose latents are expanded to keys and values of every head: which they are, and what they give.
#include "backend/cuda/expanded_prefill.h"

#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "kernels/cuda/tuning.h"
#include "model/config_loader.h"
#include "tests/support/plan_builder.h"
#include "tests/support/scheduled_run.h"
#include "tests/support/source_dir.h"

namespace llmb::test {
namespace {

LatentConfig deepseek() {
  LatentConfig latent;
  latent.rank = 512, latent.rope_dim = 64, latent.key_dim = latent.value_dim = 128;
  return latent;
}

LoadOptions load_options(const std::string& model, int32_t block_size, bool deterministic) {
  LoadOptions o;
  o.model_dir = source_dir() + "/data/fixtures/models/" + model;
  o.block_size = block_size;
  o.num_blocks_override = 400 / block_size;
  o.max_num_seqs = 4;
  o.max_num_batched_tokens = 150;
  o.max_model_len = 300;
  o.num_threads = 1;
  o.dtype = o.kv_cache_dtype = DType::kF32;
  o.cuda.deterministic = deterministic;
  return o;
}

std::unique_ptr<Backend> load(const LoadOptions& options, bool on_gpu) {
  return loaded(on_gpu ? make_cuda_backend(0) : make_cpu_backend(), load_model_config(options.model_dir).value(), options);
}

std::vector<GenerateRequest> requests_of(const std::vector<int32_t>& lengths) {
  std::vector<GenerateRequest> requests;
  for (const int32_t length : lengths) {
    GenerateRequest& request = requests.emplace_back();
    for (int32_t i = 0; i < length; ++i) request.prompt.push_back(3 + (7 * i + length) % 60);
    request.num_tokens = 3;
    request.sampling.num_logprobs = 5;
  }
  return requests;
}

TEST_CASE("a whole prompt is less work expanded; of a chunk behind a long past that depends on its rows") {
  const LatentConfig latent = deepseek();
  const auto pays = [&](int32_t rows, int32_t context) {
    const PromptWork work = prompt_work(latent, {rows, context});
    return work.expanded < work.absorbed;
  };
  for (const int32_t n : {1, 64, 8192}) CHECK(pays(n, n));
  CHECK_FALSE(pays(1, 4096));
  CHECK_FALSE(pays(16, 8192));
  CHECK(pays(512, 8192));
  // Both make the same products for a prompt without a past; its pairs cost 320 instead of 1,088.
  const PromptWork whole = prompt_work(latent, {2, 2});
  CHECK(whole.expanded == 2 * 512 * 256 + 3 * 320);
  CHECK(whole.absorbed == 2 * 512 * 256 + cuda::tuning::kAbsorbedPairCost * 3 * 1088);
}

TEST_CASE("the pool decides how many heads are expanded at a time, and what does not fit stays") {
  const LatentConfig latent = deepseek();
  const int32_t least = cuda::tuning::kMinExpandedRows;
  std::vector<uint8_t> chosen;
  const std::vector<PromptRows> prompts = {{1, 300}, {300, 300}, {least - 1, least - 1}, {256, 256}, {0, 5}};
  ExpandedSize size = choose_expanded(latent, 16, 5 * 16, prompts, &chosen);
  CHECK(chosen == std::vector<uint8_t>{0, 1, 0, 1, 0});
  CHECK((size.num_seqs == 2 && size.num_rows == 556 && size.num_blocks == 5 && size.num_heads == 16));
  CHECK(choose_expanded(latent, 16, 5 * 16 - 1, prompts, &chosen).num_heads == 8);
  CHECK(choose_expanded(latent, 12, 5 * 5, prompts, &chosen).num_heads == 4);
  size = choose_expanded(latent, 16, 4, prompts, &chosen);  // one head of the first alone
  CHECK(chosen == std::vector<uint8_t>{0, 1, 0, 0, 0});
  CHECK((size.num_blocks == 3 && size.num_heads == 1));
  size = choose_expanded(latent, 128, 5, prompts, &chosen);  // so many turns are worth nothing
  CHECK((size.num_heads == 0 && size.num_seqs == 0 && chosen == std::vector<uint8_t>(5, 0)));
  CHECK(choose_expanded(latent, 16, 0, prompts, &chosen).num_heads == 0);
}

TEST_CASE("expanded prompts, whole and in chunks at any place, give what rows over latents give") {
  for (const char* model : {"deepseek_v2", "deepseek_v3", "glm4_moe_lite"})
    for (const int32_t block_size : {4, 16}) {
      CAPTURE(model);
      CAPTURE(block_size);
      const auto gpu = load(load_options(model, block_size, false), true);
      const auto cpu = load(load_options(model, block_size, false), false);
      const auto requests = requests_of({1, 3, 4, 5, 17, 63, 127});
      const auto expected = generate_at_random(*cpu, requests, 150, 4, 1);
      for (const uint32_t seed : {1, 2, 3}) {
        const auto answers = generate_at_random(*gpu, requests, 150, 4, seed);
        for (size_t i = 0; i < requests.size(); ++i) {
          REQUIRE(answers[i].top_logprobs.size() == expected[i].top_logprobs.size());
          for (size_t t = 0; t < answers[i].top_logprobs.size(); ++t)
            for (size_t k = 0; k < 5; ++k)
              CHECK(std::fabs(answers[i].top_logprobs[t][k] - expected[i].top_logprobs[t][k]) <= 1e-4);
        }
      }
    }
}

// As a wide head's, in head_sizes_test.
TEST_CASE("expanded prompts by tensor cores: log probabilities are near the CPU's in float32") {
  ModelConfig config = load_model_config(source_dir() + "/data/fixtures/models/deepseek_v3").value();
  config.latent.rank = 40, config.head_dim = 104;
  config.latent.rope_dim = config.ropes[0].rotary_dim = 64;
  config.latent.key_dim = config.latent.value_dim = 128;
  LoadOptions options = load_options("deepseek_v3", 8, false), exact = options;
  options.load_format = exact.load_format = LoadFormat::kDummy;
  options.dtype = options.kv_cache_dtype = DType::kBF16;
  const auto gpu = loaded(make_cuda_backend(0), config, options), cpu = loaded(make_cpu_backend(), config, exact);
  const auto requests = requests_of({1, 30, 65, 128});
  const auto answers = generate_at_random(*gpu, requests, 150, 4, 1), expected = generate_at_random(*cpu, requests, 150, 4, 1);
  for (size_t i = 0; i < requests.size(); ++i)
    for (size_t k = 0; k < 5; ++k)
      CHECK(std::fabs(answers[i].top_logprobs[0][k] - expected[i].top_logprobs[0][k]) <= 0.116);
}

}  // namespace
}  // namespace llmb::test
