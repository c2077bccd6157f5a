// Prompts whose latents are expanded to keys and values of every head: which they are, and what they give.
#include "backend/cuda/expanded_prefill.h"

#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "kernels/cuda/tuning.h"
#include "model/config_loader.h"
#include "tests/support/plan_builder.h"
#include "tests/support/scheduled_run.h"
#include "tests/support/scripted_proposer.h"
#include "tests/support/source_dir.h"
#ifdef LLMB_SIMT
#include "kernels/simt/settings.h"
#endif

namespace llmb::test {
namespace {

LatentConfig deepseek() {
  LatentConfig latent;
  latent.rank = 512, latent.rope_dim = 64, latent.key_dim = latent.value_dim = 128;
  return latent;
}

constexpr int32_t kMaxModelLen = 300;

LoadOptions load_options(const std::string& model, int32_t block_size, bool deterministic) {
  LoadOptions o;
  o.model_dir = source_dir() + "/data/fixtures/models/" + model;
  o.block_size = block_size;
  o.num_blocks_override = 1000 / block_size;
  o.max_num_seqs = 4;
  o.max_num_batched_tokens = 150;
  o.max_model_len = kMaxModelLen;
  o.num_threads = 1;
  o.dtype = o.kv_cache_dtype = DType::kF32;
  o.cuda.deterministic = deterministic;
  return o;
}

// The fixtures' configurations name 128 positions.
ModelConfig long_config(const std::string& model_dir) {
  ModelConfig config = load_model_config(model_dir).value();
  config.max_position_embeddings = kMaxModelLen;
  return config;
}

std::unique_ptr<Backend> load(const LoadOptions& options, bool on_gpu) {
  return loaded(on_gpu ? make_cuda_backend(0) : make_cpu_backend(), long_config(options.model_dir), options);
}

// Launches of a kernel whose name has this in it, where they are counted.
struct Launches {
  explicit Launches(const char* kernel) : name(kernel) {}
  bool any() const { return !kAreCounted || num_runs() > before; }
  bool none() const { return !kAreCounted || num_runs() == before; }

#ifdef LLMB_SIMT
  static constexpr bool kAreCounted = true;
  uint64_t num_runs() const { return simt::num_runs(name); }
#else
  static constexpr bool kAreCounted = false;
  uint64_t num_runs() const { return 0; }
#endif
  const char* const name;
  const uint64_t before = num_runs();
};

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
  CHECK_FALSE(pays(64, 8192));  // expanding 8,192 positions takes longer than attention of 64 rows over their latents
  // Both make the same products for a prompt without a past; its pairs cost 320 instead of 1,088.
  const PromptWork whole = prompt_work(latent, {2, 2});
  const double products = cuda::tuning::kExpansionCost * (2 * 512 * 256);
  CHECK(whole.expanded == doctest::Approx(products + 3 * 320));
  CHECK(whole.absorbed == doctest::Approx(products + cuda::tuning::kAbsorbedPairCost * 3 * 1088));
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
    for (const int32_t block_size : {8, 24}) {
      CAPTURE(model);
      CAPTURE(block_size);
      const auto gpu = load(load_options(model, block_size, false), true);
      const auto cpu = load(load_options(model, block_size, false), false);
      const auto requests = requests_of({1, 3, 4, 5, 17, 63, 127, 200});
      const Launches launches("expand_latents");
      const auto expected = generate_at_random(*cpu, requests, 150, 4, 1);
      for (const uint32_t seed : {1, 2}) {
        const auto answers = generate_at_random(*gpu, requests, 150, 4, seed);
        for (size_t i = 0; i < requests.size(); ++i) {
          REQUIRE(answers[i].top_logprobs.size() == expected[i].top_logprobs.size());
          for (size_t t = 0; t < answers[i].top_logprobs.size(); ++t)
            for (size_t k = 0; k < 5; ++k)
              CHECK(std::fabs(answers[i].top_logprobs[t][k] - expected[i].top_logprobs[t][k]) <= 1e-4);
        }
      }
      CHECK(launches.any());
    }
}

// 5 prompts, 3 of which have 40 tokens in common, and one of which is a single token; some with several choices.
std::vector<std::shared_ptr<const Request>> scheduled_requests() {
  std::vector<std::shared_ptr<const Request>> requests;
  using Shape = std::tuple<int32_t, int32_t, int32_t>;
  for (const auto& [shared, own, num_choices] :
       {Shape{40, 9, 1}, Shape{40, 30, 3}, Shape{0, 1, 1}, Shape{40, 1, 1}, Shape{0, 90, 2}}) {
    auto request = std::make_shared<Request>();
    for (int32_t i = 0; i < shared; ++i) request->prompt_tokens.push_back(3 + 11 * i % 60);
    for (int32_t i = 0; i < own; ++i) request->prompt_tokens.push_back(3 + (7 * i + own) % 60);
    request->rng = {11, requests.size()};
    SamplingParams& sampling = request->params.sampling;
    sampling.temperature = requests.size() % 2 == 0 ? 0.0f : 0.8f;
    sampling.num_logprobs = 3;
    sampling.num_choices = num_choices;
    request->params.stop.max_tokens = 30;
    request->params.stop.ignore_eos = true;
    requests.push_back(request);
  }
  return requests;
}

void check_near(const ScheduledAnswers& answers, const ScheduledAnswers& expected) {
  for (size_t r = 0; r < expected.size(); ++r)
    for (size_t c = 0; c < expected[r].size(); ++c) {
      CAPTURE(r);
      const Generated &own = answers[r][c].out, &other = expected[r][c].out;
      REQUIRE(own.tokens == other.tokens);
      for (size_t t = 0; t < own.tokens.size(); ++t) CHECK(std::fabs(own.logprobs[t] - other.logprobs[t]) <= 1e-4);
    }
}

TEST_CASE("prefixes from the cache, choices, chunks, drafts and a pool that preempts: the CPU's tokens") {
  const auto requests = scheduled_requests();
  const auto cpu = load(load_options("deepseek_v3", 8, false), false);
  const ScheduledAnswers expected = choices_alone(*cpu, requests, 150);
  int64_t num_preemptions = 0, num_drafts = 0;
  for (const auto& [budget, num_blocks, has_drafts] : {std::tuple{150, 100, false}, {23, 100, true}, {60, 21, true}}) {
    CAPTURE(budget);
    LoadOptions o = load_options("deepseek_v3", 8, false);
    o.num_blocks_override = num_blocks;
    SchedulerConfig config;
    config.max_num_seqs = o.max_num_seqs;
    config.max_num_batched_tokens = o.max_num_batched_tokens = budget;
    config.max_model_len = kMaxModelLen;
    config.enable_prefix_caching = true;
    if (has_drafts) config.max_num_drafts = o.max_num_drafts = 14, config.max_drafts_per_group = 6;
    ScriptedProposer proposer(tokens_of(requests, expected), 64, {0.8, 0.7, 0, 0}, 7);
    const auto gpu = load(o, true);
    const Launches launches("expand_latents");
    const ScheduledRun run = run_scheduled(*gpu, config, has_drafts ? &proposer : nullptr, requests);
    check_near(run.answers, expected);
    CHECK(launches.any());
    num_preemptions += run.num_preemptions;
    num_drafts += run.num_drafts;
  }
  CHECK(num_preemptions > 0);
  CHECK(num_drafts > 0);
}

TEST_CASE("deterministic runs expand nothing: the same bits whatever the chunks") {
  const auto gpu = load(load_options("deepseek_v3", 8, true), true);
  const auto requests = requests_of({1, 30, 127});
  const Launches launches("expand_latents");
  const auto whole = generate_one_by_one(*gpu, requests, 150);
  const bool is_same = generate_at_random(*gpu, requests, 23, 4, 1) == whole;
  CHECK(is_same);
  CHECK(launches.none());
}

// As a wide head's, in head_sizes_test.
TEST_CASE("expanded prompts by tensor cores: log probabilities are near the CPU's in float32") {
  ModelConfig config = long_config(source_dir() + "/data/fixtures/models/deepseek_v3");
  config.latent.rank = 40, config.head_dim = 104;
  config.latent.rope_dim = config.ropes[0].rotary_dim = 64;
  config.latent.key_dim = config.latent.value_dim = 128;
  LoadOptions options = load_options("deepseek_v3", 8, false), exact = options;
  options.load_format = exact.load_format = LoadFormat::kDummy;
  options.dtype = options.kv_cache_dtype = DType::kBF16;
  const auto gpu = loaded(make_cuda_backend(0), config, options), cpu = loaded(make_cpu_backend(), config, exact);
  const auto requests = requests_of({1, 30, 65, 128, 200});
  const Launches launches("expand_latents_kernel");
  const auto answers = generate_at_random(*gpu, requests, 150, 4, 1);
  const auto expected = generate_at_random(*cpu, requests, 150, 4, 1);
  CHECK(launches.any());
  for (size_t i = 0; i < requests.size(); ++i)
    for (size_t k = 0; k < 5; ++k)
      CHECK(std::fabs(answers[i].top_logprobs[0][k] - expected[i].top_logprobs[0][k]) <= 0.116);
}

}  // namespace
}  // namespace llmb::test
