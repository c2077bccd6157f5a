// Layers behind the last one on the CUDA backend, for multi-token prediction and EAGLE's: their definition's tokens, however
// prompts are cut and wherever blocks have been.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "model/config_loader.h"
#include "model/eagle_layer.h"
#include "tests/support/draft_layer_trial.h"
#include "tests/support/golden.h"
#include "tests/support/plan_builder.h"

namespace llmb::test {
namespace {

// The mean error of log probabilities where activations are rounded to 16 bits, over tiny models; and the largest, as
// rounding may choose another expert.
constexpr double kMeanError = 0.06, kMostError = 0.8;

const std::string kFixtures = source_dir() + "/data/fixtures/";

// A model, and a layer of EAGLE's for it or its own.
struct DraftingModel {
  std::string name, model, eagle;

  std::vector<nlohmann::json> lines() const {
    return read_json_lines((eagle.empty() ? model : eagle) + "/golden.jsonl");
  }
  std::unique_ptr<Backend> load(LoadOptions o) const {
    ModelConfig config = load_model_config(model).value();
    if (eagle.empty()) config.mtp.is_used = true;
    else EagleFiles::open(eagle, config).value().describe(&config);
    o.model_dir = model;
    o.eagle_dir = eagle;
    o.num_threads = 1;
    return loaded(make_cuda_backend(0), config, o);
  }
};

std::vector<DraftingModel> drafting_models() {
  std::vector<DraftingModel> all;
  for (const std::string name : {"qwen3_5-text", "qwen3_next", "deepseek_v3", "glm4_moe"})
    all.push_back({name, kFixtures + "mtp/" + name, ""});
  for (const std::string name : {"llama-gqa", "qwen3", "qwen3_moe"})
    all.push_back({name, kFixtures + "models/" + name, kFixtures + "eagle/" + name});
  for (const std::string name : {"llama-gqa", "qwen3"})
    all.push_back({name + "-3", kFixtures + "models/" + name, kFixtures + "eagle/" + name + "-3"});
  return all;
}

const DraftingModel& drafting_model(const std::string& name) {
  static const std::vector<DraftingModel> all = drafting_models();
  return *std::find_if(all.begin(), all.end(), [&](const DraftingModel& model) { return model.name == name; });
}

// Every second line, with its prompt in pieces of one size or another.
void check_some_lines(Backend& backend, const DraftingModel& model, size_t first,
                      std::vector<double>* errors = nullptr) {
  CHECK(backend.info().has_mtp);
  const auto lines = model.lines();
  REQUIRE(lines.size() > 5);
  for (size_t i = first % 2; i < lines.size(); i += 2) {
    const int32_t chunk = std::array{64, 5, 1}[i / 2 % 3];
    CAPTURE(chunk);
    CAPTURE(lines[i]["prompt_token_ids"].size());
    DraftLayerTrial trial(backend, lines[i], chunk, errors);
    trial.read_prompt();
    trial.check_guesses(i / 2 % 2 == 1);
  }
}

LoadOptions options_of(DType dtype, int32_t block_size) {
  LoadOptions o = draft_layer_options("", block_size);
  o.dtype = o.kv_cache_dtype = dtype;
  return o;
}

}  // namespace

TEST_CASE("layers behind the last one give their definition's best tokens, one behind the other") {
  size_t first = 0;
  for (const DraftingModel& model : drafting_models()) {
    CAPTURE(model.name);
    LoadOptions o = options_of(DType::kF32, first % 2 == 0 ? 8 : 16);
    o.cuda.deterministic = first % 3 == 0;
    check_some_lines(*model.load(o), model, first);
    ++first;
  }
}

TEST_CASE("with activations of 16 bits, and keys and values of 8, as close as that rounds") {
  size_t first = 0;
  for (const DraftingModel& model : drafting_models()) {
    CAPTURE(model.name);
    const DType dtype = first % 2 == 0 ? DType::kBF16 : DType::kF16;
    LoadOptions o = options_of(dtype, 16);
    o.cuda.deterministic = first % 3 == 1;
    if (model.name == "glm4_moe") o.kv_cache_dtype = DType::kF8;
    if (model.name == "qwen3-3") o.kv_cache_dtype = DType::kI8;
    std::vector<double> errors;
    check_some_lines(*model.load(o), model, ++first, &errors);
    REQUIRE(errors.size() > 50);
    double sum = 0;
    for (const double error : errors) {
      CHECK(error <= kMostError);
      sum += error;
    }
    MESSAGE(model.name << ", " << std::string(dtype_name(dtype)) << ": " << sum / static_cast<double>(errors.size()));
    CHECK(sum / static_cast<double>(errors.size()) <= kMeanError);
  }
}

TEST_CASE("blocks that another sequence filled, and blocks that were in the host's pool, hold what the layer needs") {
  for (const char* name : {"glm4_moe", "deepseek_v3", "llama-gqa-3"}) {
    const DraftingModel& model = drafting_model(name);
    CAPTURE(model.name);
    LoadOptions o = options_of(DType::kF32, 8);
    o.swap_space_gib = 1;
    const auto backend = model.load(o);
    CHECK(backend->info().num_host_blocks == 32);
    const auto lines = model.lines();
    for (size_t i = 1; i < lines.size(); i += 3) {
      const nlohmann::json& line = lines[i];
      const auto length = static_cast<int32_t>(line["prompt_token_ids"].size());
      for (const int32_t first : {8, length - 1}) {
        if (first < 1 || first >= length) continue;
        DraftLayerTrial(*backend, line, 64).read_prompt();
        DraftLayerTrial second(*backend, line, 64);
        second.read_prompt(first);
        second.check_guesses(false);
      }
      DraftLayerTrial swapped(*backend, line, 64), other(*backend, lines[lines.size() - 1], 64);
      swapped.read_prompt();
      // Out as the other's prompt comes, which takes the same blocks.
      const std::vector<BlockCopy> out = swapped.blocks_of_prompt();
      other.swap(out, {});
      other.read_prompt();
      swapped.swap({}, out);
      swapped.check_guesses(false);
    }
  }
}

TEST_CASE("nothing is kept or run of a layer behind the last one unless it is used") {
  const DraftingModel& model = drafting_model("glm4_moe");
  ModelConfig config = load_model_config(model.model).value();
  LoadOptions o = options_of(DType::kBF16, 8);
  const auto with = model.load(o);
  o.model_dir = model.model;
  const auto without = loaded(make_cuda_backend(0), config, o);
  CHECK(!without->info().has_mtp);
  CHECK(without->info().weight_bytes < with->info().weight_bytes);
  CHECK(with->info().kv.bytes_per_token() ==
        without->info().kv.bytes_per_token() + 2 * (2 * config.kv_size() + config.hidden_size));
  PlanBuilder builder(8);
  builder.add({1, 2}, 1, 1, {0}, SampleRow());
  StepPlan plan = builder.plan();
  plan.is_mtp = true;
  CHECK(!without->submit(plan).ok());
}

}  // namespace llmb::test
