// Layers whose heads differ in size or that use earlier layers' keys and values, and latents, on the CUDA backend.
#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "model/config_loader.h"
#include "tests/support/plan_builder.h"
#include "tests/support/scheduled_run.h"
#include "tests/support/scripted_proposer.h"
#include "tests/support/source_dir.h"
#include "tests/support/window_requests.h"

namespace llmb::test {
namespace {

std::string model_dir(const std::string& model) { return source_dir() + "/data/fixtures/models/" + model; }

LoadOptions load_options(DType dtype, bool groups_layers, int32_t num_blocks) {
  LoadOptions o;
  o.groups_layers = groups_layers;
  o.block_size = 8;
  o.num_blocks_override = num_blocks;
  o.max_num_seqs = 4;
  o.max_num_batched_tokens = 40;
  o.max_num_drafts = 6;
  o.max_model_len = 64;
  o.num_threads = 1;
  o.dtype = dtype;
  o.kv_cache_dtype = dtype;
  o.cuda.deterministic = true;
  return o;
}

// Models with random weights in sizes that the tensor-core kernels take.
ModelConfig wide_gemma4() {
  ModelConfig config = load_model_config(model_dir("gemma4")).value();
  config.head_dim = 16;
  for (LayerConfig& layer : config.layers)
    if (layer.head_dim > 0) layer.head_dim = 264;
  config.layers[2].values_are_keys = true;
  config.ropes[0].rotary_dim = 264, config.ropes[1].rotary_dim = 16;
  return config;
}

ModelConfig wide_deepseek() {
  ModelConfig config = load_model_config(model_dir("deepseek_v3")).value();
  config.latent.rank = 40;
  config.latent.rope_dim = config.ropes[0].rotary_dim = 64;
  config.head_dim = 104;
  return config;
}

struct Model {
  std::string name;
  ModelConfig config;
  LoadFormat format = LoadFormat::kAuto;
};

std::vector<Model> models() {
  std::vector<Model> all;
  for (const char* name : {"gemma4", "gemma4-keys", "deepseek_v2", "deepseek_v3"})
    all.push_back({name, load_model_config(model_dir(name)).value()});
  all.push_back({"gemma4", wide_gemma4(), LoadFormat::kDummy});
  all.push_back({"deepseek_v3", wide_deepseek(), LoadFormat::kDummy});
  return all;
}

std::unique_ptr<Backend> load(const Model& model, LoadOptions options, bool on_gpu = true) {
  options.model_dir = model_dir(model.name);
  options.load_format = model.format;
  return loaded(on_gpu ? make_cuda_backend(0) : make_cpu_backend(), model.config, options);
}

SchedulerConfig scheduler_config() {
  SchedulerConfig config;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 23;
  config.max_model_len = 64;
  return config;
}

TEST_CASE("deterministic: the same bits with choices and trees of drafts, from a small pool") {
  int64_t num_copies = 0, num_trees = 0;
  for (const Model& model : models())
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      if (dtype == DType::kF32 && model.format == LoadFormat::kDummy) continue;
      CAPTURE(model.name);
      CAPTURE(dtype_name(dtype));
      auto requests = window_requests({13, 37}, 7);
      requests.push_back(window_requests({26}, 7, 2)[0]);
      SchedulerConfig config = scheduler_config();
      const auto plain =
          run_scheduled(*load(model, load_options(dtype, false, 100)), config, nullptr, requests).answers;
      const auto answer = tokens_of(requests, plain);
      ScriptedProposer proposer(answer, 60, {.propose_rate = 0.8, .right_rate = 0.7, .tree_rate = 0.7}, 2);
      config.max_num_drafts = 6;
      config.allows_trees = true;
      const auto num_groups = load(model, load_options(dtype, true, 100))->info().kv.groups.num_groups();
      CHECK((num_groups > 1) == (model.name == "gemma4" || model.name == "gemma4-keys"));
      const auto backend = load(model, load_options(dtype, true, 8 * num_groups));
      const ScheduledRun run = run_scheduled(*backend, config, &proposer, requests);
      const bool is_same = run.answers == plain;
      CHECK(is_same);
      num_copies += run.num_copies;
      num_trees += run.num_trees;
    }
  CHECK(num_copies > 0);
  CHECK(num_trees > 0);
}

// transformers in bfloat16 is off by up to 0.116 on a golden model's prompts.
TEST_CASE("wide heads and latents by tensor cores: log probabilities are near the CPU's in float32") {
  for (const Model& model : models()) {
    if (model.format != LoadFormat::kDummy) continue;
    CAPTURE(model.name);
    const LoadOptions options = load_options(DType::kBF16, true, 60), exact = load_options(DType::kF32, true, 60);
    const auto gpu = load(model, options), cpu = load(model, exact, false);
    CHECK(gpu->info().kv.bytes_per_block() * 2 == cpu->info().kv.bytes_per_block());
    std::vector<GenerateRequest> requests;
    for (const int32_t length : {1, 17, 30}) {
      GenerateRequest& request = requests.emplace_back();
      for (int32_t i = 0; i < length; ++i) request.prompt.push_back(3 + (7 * i + length) % 60);
      request.num_tokens = 1;
      request.sampling.num_logprobs = 5;
    }
    const auto answers = generate_at_random(*gpu, requests, 40, 4, 1), expected = generate_at_random(*cpu, requests, 40, 4, 1);
    for (size_t i = 0; i < requests.size(); ++i) {
      REQUIRE(answers[i].top_logprobs[0].size() == 5);
      for (size_t k = 0; k < 5; ++k)
        CHECK(std::fabs(answers[i].top_logprobs[0][k] - expected[i].top_logprobs[0][k]) <= 0.116);
    }
  }
}

TEST_CASE("keys and values in 8 bits are refused where there are latents or heads of two sizes") {
  for (const char* name : {"gemma4", "deepseek_v3"}) {
    for (const DType kv_dtype : {DType::kI8, DType::kF8}) {
      LoadOptions options = load_options(DType::kBF16, false, 20);
      options.kv_cache_dtype = kv_dtype;
      options.model_dir = model_dir(name);
      const Status status = make_cuda_backend(0)->load(load_model_config(options.model_dir).value(), options);
      CHECK(status.code() == StatusCode::kUnsupported);
      CHECK(status.message().find(std::string("kv-cache-dtype ") + dtype_name(kv_dtype)) != std::string::npos);
    }
  }
}

}  // namespace
}  // namespace llmb::test
