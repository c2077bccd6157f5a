// Costs of layers and of the LM head are measured by steps of small models of the same shape; whatever they are, and wherever
// stages part the layers by them, answers have the bytes of one rank.
#include "job/measured_stages.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/checks.h"
#include "backend/cpu/cpu_backend.h"
#include "core/kv_layout.h"
#include "model/config_loader.h"
#include "tests/support/golden.h"
#include "tests/support/source_dir.h"
#include "tests/support/thread_ranks.h"
#include "tests/unit/golden_answers.h"

namespace llmb::test {

namespace {

using LayerPrice = std::function<double(const LayerConfig&, double position)>;  // ms of a row

// Checks what it is asked, and takes as long as it is told: for all rows in each layer, behind the last one's attention for
// rows that are sampled, and for each of these by the size of the vocabulary.
class PricedLayers final : public Backend {
 public:
  PricedLayers(LayerPrice price, double token_ms) : price_(std::move(price)), token_ms_(token_ms) {}

  Status load(const ModelConfig& config, const LoadOptions& options) override {
    REQUIRE(check_load_options(config, options).ok());
    CHECK(options.load_format == LoadFormat::kDummy);
    CHECK(options.swap_space_gib == 0);
    config_ = config, options_ = options;
    info_.kv = make_kv_layout(config, options.block_size, DType::kF32, layer_groups(config, options));
    CHECK(info_.kv.bytes_per_block() > 0);
    info_.kv.num_blocks = options.num_blocks_override;
    info_.copies_blocks = true;
    if (config.has_states()) info_.num_state_slots = 3 * options.max_num_seqs;
    return {};
  }
  const BackendInfo& info() const override { return info_; }
  Status submit(const StepPlan& plan) override {
    const Status status = check_plan(plan, config_, options_, info_, nullptr);
    REQUIRE_MESSAGE(status.ok(), status.message());
    CHECK(plan.step == num_steps_++);
    ms_ = plan.num_samples() * token_ms_ * config_.vocab_size;
    for (int32_t i = 0; i < config_.num_hidden_layers; ++i) {
      const bool is_last = i + 1 == config_.num_hidden_layers;
      const double of_row = price_(config_.layer(i), plan.entries[0].base), of_all = is_last ? part_of_all_rows(i) : 1;
      ms_ += of_row * (of_all * plan.num_tokens() + (1 - of_all) * plan.num_samples());
    }
    return {};
  }
  Status wait(StepOutput* output) override {
    output->device_ms = ms_;
    return {};
  }

 private:
  // In front of attention: of a layer's weights those of q, k and v.
  double part_of_all_rows(int32_t layer) const {
    ModelConfig one = config_;
    one.layers = {config_.layer(layer)};
    one.num_hidden_layers = 1;
    one.vocab_size = 0;
    return static_cast<double>(one.hidden_size * one.qkv_size_of(0)) / static_cast<double>(one.num_stored_matmul_params());
  }

  const LayerPrice price_;
  const double token_ms_;
  ModelConfig config_;
  LoadOptions options_;
  BackendInfo info_;
  int64_t num_steps_ = 0;
  double ms_ = 0;
};

ModelConfig priced_config(int32_t layers) {
  ModelConfig config;
  config.num_attention_heads = config.num_key_value_heads = 4;
  config.head_dim = 64;
  config.hidden_size = 256;
  config.intermediate_size = 128;
  config.activation.gated = false;
  config.num_hidden_layers = layers;
  config.vocab_size = 50000;
  config.max_position_embeddings = 4096;
  return config;
}

LoadOptions priced_options() {
  LoadOptions load;
  load.max_num_seqs = 64;
  load.max_num_batched_tokens = 512;
  load.max_model_len = 2000;
  load.num_threads = 1;
  return load;
}

RankPart stages(int32_t count, StageRows rows) { return {0, 1, count, 1, false, std::move(rows)}; }

BackendFactory priced(LayerPrice price, double token_ms) {
  return [price = std::move(price), token_ms](std::string_view) -> Result<std::unique_ptr<Backend>> {
    return std::unique_ptr<Backend>(std::make_unique<PricedLayers>(price, token_ms));
  };
}

BackendFactory on_cpu() {
  return [](std::string_view) -> Result<std::unique_ptr<Backend>> { return make_cpu_backend(); };
}

bool is_about(int64_t actual, double expected) { return std::fabs(static_cast<double>(actual) - expected) <= 0.03 * expected; }

}  // namespace

TEST_CASE("a head as long as five layers is found, and three stages are cut by it") {
  const LayerPrice price = [](const LayerConfig&, double) { return 0.2; };
  const ModelConfig config = priced_config(28);
  const RankPart grid = stages(3, {0, 100, 24});
  const auto measured = measure_stages(priced(price, 1.0 / 50000), "cpu", config, priced_options(), grid);
  REQUIRE(measured.has_value());
  CHECK(measured->is_steady);
  const StageCosts* const costs = &measured->costs;
  REQUIRE(costs->answers.size() == 28);
  for (const int64_t cost : costs->answers) CHECK(is_about(cost, 24 * 0.2 * 1e6));
  CHECK(is_about(costs->head, 24 * 1e6));
  CHECK(cut_layers(*costs, 0, 3) == std::vector<int64_t>{0, 11, 22, 28});
}

TEST_CASE("each kind of layer by itself, in steps of prompts and of answers: windows, experts, states, MLPs alone") {
  const LayerPrice price = [](const LayerConfig& layer, double position) {
    if (!layer.has_mixer) return 0.05;
    if (layer.has_state) return 0.3;
    return 0.1 + (layer.has_experts ? 0.4 : 0) + 0.001 * (layer.window > 0 ? std::min<double>(layer.window, position) : position);
  };
  ModelConfig config = priced_config(9);
  config.layers.resize(9);
  const auto measured = [&] {
    const auto found = measure_stages(priced(price, 1e-6), "cpu", config, priced_options(), stages(2, {500, 320, 16}));
    REQUIRE(found.has_value());
    const StageCosts* const costs = &found->costs;
    for (size_t i = 0; i < 9; ++i) {
      CAPTURE(i);
      CHECK(is_about(costs->answers[i], 16e6 * price(config.layers[i], 320)));
      CHECK(is_about(costs->prompts[i], 256e6 * price(config.layers[i], 320)));
    }
  };
  for (size_t i = 0; i < 9; ++i) config.layers[i].window = i % 3 == 2 ? 0 : 64;
  measured();
  config.experts.num_experts = 4, config.experts.top_k = 1, config.experts.intermediate_size = 16;
  for (size_t i = 5; i < 9; ++i) config.layers[i].window = 0, config.layers[i].has_experts = true;
  measured();
  config = priced_config(9);
  config.layers.resize(9);
  config.state = {.kind = StateKind::kGatedDelta, .num_key_heads = 1, .num_value_heads = 1, .key_dim = 16, .value_dim = 16,
                  .conv_width = 4};
  for (const size_t i : {0, 1, 3, 4}) config.layers[i].has_state = true;  // the first one has no keys
  for (const size_t i : {2, 7}) config.layers[i].has_mixer = false;
  measured();
}

TEST_CASE("steps that take uneven times are not believed") {
  int num_asked = 0;
  const LayerPrice price = [&num_asked](const LayerConfig&, double) { return 0.2 * std::pow(1.2, ++num_asked / 8); };
  const auto measured = measure_stages(priced(price, 1e-6), "cpu", priced_config(8), priced_options(), stages(2, {0, 100, 24}));
  REQUIRE(measured.has_value());
  CHECK_FALSE(measured->is_steady);
}

TEST_CASE("nothing is measured of layers that are too large, of few bits, or where the device says no: stages are counted") {
  const LayerPrice price = [](const LayerConfig&, double) { return 0.2; };
  const StageRows rows = {0, 100, 24};
  const auto measures = [&](const ModelConfig& config, const BackendFactory& make, const LoadOptions& load) {
    return measure_stages(make, "cpu", config, load, stages(2, rows)).has_value();
  };
  const ModelConfig config = priced_config(8);
  CHECK(measures(config, priced(price, 1e-6), priced_options()));
  ModelConfig large = config;
  large.intermediate_size = 40000;  // 21 million weights
  CHECK_FALSE(measures(large, priced(price, 1e-6), priced_options()));
  LoadOptions threads = priced_options();
  threads.num_threads = 2;
  CHECK(measures(large, priced(price, 1e-6), threads));
  ModelConfig few_bits = config;
  few_bits.has_quantization = true;
  CHECK_FALSE(measures(few_bits, priced(price, 1e-6), priced_options()));
  const BackendFactory none = [](std::string_view) -> Result<std::unique_ptr<Backend>> { return device_error("none"); };
  CHECK_FALSE(measures(config, none, priced_options()));
  ModelConfig stateful = config;  // no layer has keys
  stateful.layers.resize(8);
  for (LayerConfig& layer : stateful.layers) layer.has_mixer = false;
  CHECK_FALSE(measures(stateful, priced(price, 1e-6), priced_options()));
}

TEST_CASE("the CPU measures models of every kind of layer") {
  for (const std::string& name : std::vector<std::string>{"qwen3", "lfm2", "nemotron_h-experts", "gemma3", "qwen3_next", "deepseek_v3", "mixtral",
                           "qwen2-window", "granitemoehybrid", "gpt2", "bloom", "gemma4"}) {
    CAPTURE(name);
    const std::string dir = source_dir() + "/data/fixtures/models/" + name;
    const auto config = load_model_config(dir);
    REQUIRE(config.ok());
    for (const DType kv_dtype : {DType::kF32, DType::kI4}) {
      CAPTURE(dtype_name(kv_dtype));
      LoadOptions load = rank_golden_options(dir, *config);
      load.kv_cache_dtype = kv_dtype;
      if (kv_dtype == DType::kI4) load.block_size = kKvGroup;
      if (kv_dtype == DType::kI4 && !make_cpu_backend()->load(*config, load).ok()) continue;
      const auto found = measure_stages(on_cpu(), "cpu", *config, load, stages(2, {300, 70, 5}));
      REQUIRE(found.has_value());
      const StageCosts* const costs = &found->costs;
      CHECK(costs->answers.size() == static_cast<size_t>(config->num_hidden_layers));
      int64_t sum = 0;
      for (size_t i = 0; i < costs->answers.size(); ++i) {
        CHECK(costs->answers[i] >= 0);
        CHECK(costs->prompts[i] >= 0);
        sum += costs->answers[i];
      }
      CHECK(sum > 0);
      CHECK(costs->head >= 0);
    }
  }
}

TEST_CASE("wherever two stages part the layers, answers have the bytes of one rank") {
  int num_cuts = 0;
  for (const std::string& name : std::vector<std::string>{"qwen3", "lfm2", "nemotron_h", "gemma3", "gemma4",
                                                          "deepseek_v3", "qwen2-window"}) {
    CAPTURE(name);
    const std::string dir = source_dir() + "/data/fixtures/models/" + name;
    const auto config = load_model_config(dir);
    REQUIRE(config.ok());
    const auto lines = read_json_lines(dir + "/golden.jsonl");
    const auto bytes_over = [&](std::unique_ptr<Backend> backend) {
      const Status status = backend->load(*config, rank_golden_options(dir, *config));
      REQUIRE_MESSAGE(status.ok(), status.message());
      return bytes_of(answer(*backend, lines, "prompt_token_ids", "token_ids", 5));
    };
    const std::string expected = bytes_over(make_cpu_backend());
    const int32_t layers = config->num_hidden_layers;
    for (int32_t cut = 1; cut < layers; ++cut) {
      CAPTURE(cut);
      StageCosts costs;  // those in front of the cut cost as much as those behind it
      for (int32_t i = 0; i < layers; ++i) costs.answers.push_back(i < cut ? layers - cut : cut);
      costs.prompts = costs.answers;
      CHECK(cut_layers(costs, 300, 2) == std::vector<int64_t>{0, cut, layers});
      const PrepareRank plant = [&](RankContext& context) { context.part.rows = {300, 9, 4, costs}; };
      CHECK((bytes_over(make_thread_ranks(1, 2, 0, plant)) == expected));
      ++num_cuts;
    }
  }
  CHECK(num_cuts >= 10);
}

}  // namespace llmb::test
