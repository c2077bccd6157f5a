// Adapters of random numbers for any model, with a module for every projection of it that may have one.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/float_formats.h"
#include "model/architecture.h"
#include "model/lora_places.h"
#include "tests/support/adapted_models.h"
#include "tests/support/process.h"
#include "tests/support/raw_safetensors.h"

namespace llmb::test {

// The number of modules.
inline int64_t write_random_adapter(const std::string& dir, const ModelConfig& config, uint32_t seed) {
  constexpr int64_t kRank = 3;
  std::mt19937 rng(seed);
  std::vector<RawTensor> tensors;
  const LoraPlaces places(config, *find_architecture(config.model_type));
  for (const std::string& module : places.linear_modules()) {
    const auto place = places.find(module);
    if (!place.ok()) continue;  // no such projection in this layer
    for (const auto& [suffix, rows, cols] :
         {std::tuple(".lora_A.weight", kRank, place->in_features), {".lora_B.weight", place->out_features, kRank}}) {
      std::vector<uint16_t> values(static_cast<size_t>(rows * cols));
      for (uint16_t& value : values) value = f32_to_bf16(static_cast<float>(rng() % 2001) / 2000 - 0.5f);
      tensors.push_back({"base_model.model." + module + suffix, "BF16", {rows, cols}, bytes_of(values)});
    }
  }
  std::filesystem::create_directories(dir);
  write_file(dir + "/adapter_config.json", R"({"peft_type":"LORA","r":3,"lora_alpha":6,"bias":"none"})");
  write_file(dir + "/adapter_model.safetensors", raw_safetensors(tensors));
  return static_cast<int64_t>(tensors.size()) / 2;
}

// Requests for each of two such adapters and for none, in turn.
inline AdaptedModel random_adapted_model(const std::string& name, const std::string& dir) {
  AdaptedModel model;
  const std::string path = fixtures() + "models/" + name;
  model.config = load_model_config(path).value();
  for (const uint32_t seed : {1, 2})
    CHECK(write_random_adapter(dir + "/" + std::to_string(seed), model.config, seed) > 3);
  model.library = std::make_shared<AdapterLibrary>(adapters_below(dir).value(), model.config, path);
  for (int32_t id = 0; id < model.library->size(); ++id) {
    const Status status = model.library->prepare(id);
    REQUIRE_MESSAGE(status.ok(), status.message());
  }
  for (int32_t i = 0; i < 9; ++i) {
    GenerateRequest& request = model.requests.emplace_back();
    for (int32_t k = 0; k < 3 + 2 * i; ++k)
      request.prompt.push_back((7 * k + 11 * (i / 3) + 5) % model.config.vocab_size);
    request.num_tokens = 4;
    request.sampling.num_logprobs = 3;
    request.adapter = i % 3 - 1;
    model.lines.emplace_back();
  }
  return model;
}

}  // namespace llmb::test
