// Costs of layers and of the LM head are measured on the CUDA backend as on the CPU: models of every kind of layer.
#include "job/measured_stages.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <string_view>

#include "backend/cuda/cuda_backend.h"
#include "model/config_loader.h"
#include "tests/support/source_dir.h"

namespace llmb::test {
namespace {

TEST_CASE("a GPU measures layers of every kind, and the LM head") {
  const BackendFactory make = [](std::string_view) -> Result<std::unique_ptr<Backend>> { return make_cuda_backend(0); };
  for (const char* name : {"llama-gqa", "gemma3", "lfm2", "nemotron_h-experts", "deepseek_v3"}) {
    CAPTURE(name);
    const std::string dir = source_dir() + "/data/fixtures/models/" + name;
    const auto config = load_model_config(dir);
    REQUIRE(config.ok());
    LoadOptions load;
    load.model_dir = dir;
    load.block_size = 8;
    load.max_num_seqs = 4;
    load.max_num_batched_tokens = 48;
    load.max_model_len = 64;
    load.num_threads = 1;
    load.dtype = DType::kBF16;
    load.cuda.deterministic = true;
    const auto found = measure_stages(make, "cuda:0", *config, load, {0, 1, 2, 1, false, {300, 40, 3}});
    REQUIRE(found.has_value());
    const StageCosts* const costs = &found->costs;
    CHECK(costs->answers.size() == static_cast<size_t>(config->num_hidden_layers));
    CHECK(costs->prompts.size() == costs->answers.size());
    int64_t sum = 0;
    for (const int64_t cost : costs->answers) sum += cost;
    CHECK(sum > 0);
    CHECK(cut_layers(*costs, 300, 2).size() == 3);
  }
}

}  // namespace
}  // namespace llmb::test
