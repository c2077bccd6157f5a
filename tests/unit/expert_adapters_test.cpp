// Adapters of the experts that a router chooses: one matrix for each, or PEFT's stacks of all, are the same adapter; what
// does not fit is refused by the tensors' names. PEFT's own answers: lora_adapter_test.
#include <doctest/doctest.h>

#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "model/lora_adapter.h"
#include "tests/support/adapted_models.h"
#include "tests/support/process.h"
#include "tests/support/raw_safetensors.h"
#include "tests/support/temp_dir.h"

namespace llmb::test {
namespace {

constexpr int64_t kRank = 3;

std::vector<float> random_values(int64_t count, std::mt19937* rng) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>((*rng)() % 2001) / 4000 - 0.25f;
  return values;
}

void write_adapter(const std::string& dir, const std::vector<RawTensor>& tensors) {
  std::filesystem::create_directories(dir);
  write_file(dir + "/adapter_config.json", R"({"peft_type":"LORA","r":3,"lora_alpha":6})");
  write_file(dir + "/adapter_model.safetensors", raw_safetensors(tensors));
}

// Both forms of the experts of one projection or two, which have A in common.
class TwoForms {
 public:
  explicit TwoForms(const ModelConfig& model) : model_(model) {}

  void add(const std::string& folder, const std::string& stack, const std::vector<std::string>& projections,
           int64_t in_features, int64_t out_features) {
    const int64_t count = model_.experts.num_experts, out = out_features * static_cast<int64_t>(projections.size());
    const std::vector<float> a = random_values(count * kRank * in_features, &rng_),
                             b = random_values(out * kRank * count, &rng_);
    stacked.push_back({folder + stack + ".lora_A.weight", "F32", {count * kRank, in_features}, bytes_of(a)});
    stacked.push_back({folder + stack + ".lora_B.weight", "F32", {out, kRank * count}, bytes_of(b)});
    for (int64_t e = 0; e < count; ++e) {
      const auto first = a.begin() + e * kRank * in_features;
      const std::vector<float> own_a(first, first + kRank * in_features);
      for (size_t p = 0; p < projections.size(); ++p) {
        std::vector<float> own_b;
        for (int64_t row = 0; row < out_features; ++row)
          for (int64_t r = 0; r < kRank; ++r)
            own_b.push_back(b[static_cast<size_t>(
                ((static_cast<int64_t>(p) * out_features + row) * kRank + r) * count + e)]);
        const std::string name = folder + "." + std::to_string(e) + "." + projections[p];
        single.push_back({name + ".lora_A.weight", "F32", {kRank, in_features}, bytes_of(own_a)});
        single.push_back({name + ".lora_B.weight", "F32", {out_features, kRank}, bytes_of(own_b)});
      }
    }
  }

  std::vector<RawTensor> stacked, single;

 private:
  const ModelConfig& model_;
  std::mt19937 rng_{5};
};

TEST_CASE("a matrix for each expert and stacks of all experts give the same bytes, in any steps") {
  const std::string name = "qwen3_moe";
  const TempDir dir;
  AdaptedModel model;
  model.config = load_model_config(fixtures() + "models/" + name).value();
  TwoForms forms(model.config);
  for (int32_t layer = 0; layer < model.config.num_hidden_layers; ++layer) {
    if (!model.config.layer(layer).has_experts) continue;
    const std::string folder = "base_model.model.model.layers." + std::to_string(layer) + ".mlp.experts";
    const int64_t hidden = model.config.hidden_size, deep = model.config.experts.intermediate_size;
    forms.add(folder, ".base_layer", {"gate_proj", "up_proj"}, hidden, deep);
    forms.add(folder, "", {"down_proj"}, deep, hidden);
  }
  REQUIRE(!forms.stacked.empty());
  write_adapter(dir / "single", forms.single);
  write_adapter(dir / "stacked", forms.stacked);
  model.library = std::make_shared<AdapterLibrary>(adapters_below(dir.path()).value(), model.config);
  for (const int32_t id : {0, 1}) {
    const Status status = model.library->prepare(id);
    REQUIRE_MESSAGE(status.ok(), status.message());
    CHECK(model.library->open(id)->max_rank() == kRank);
  }
  CHECK(model.library->open(0)->num_parameters() > model.library->open(1)->num_parameters());  // A of gate and of up
  for (int32_t i = 0; i < 12; ++i) {
    GenerateRequest& request = model.requests.emplace_back();
    for (int32_t k = 0; k < 4 + 3 * (i / 3); ++k) request.prompt.push_back((5 * k + 3 * (i / 3) + 1) % model.config.vocab_size);
    request.num_tokens = 6;
    request.sampling.num_logprobs = 3;
    request.adapter = i % 3 - 1;  // none, single, stacked
  }
  const auto alone = generate_one_by_one(*load_adapted(name, model, 0), model.requests, 64);
  for (size_t i = 0; i < alone.size(); i += 3) {
    CHECK((alone[i + 1] == alone[i + 2]));
    CHECK(alone[i].logprobs != alone[i + 1].logprobs);
  }
  CHECK((alone == generate_at_random(*load_adapted(name, model, int64_t{1} << 30), model.requests, 23, 6, 2)));
}

TEST_CASE("stacks of other shapes, and experts that are not there, are refused by their names") {
  const ModelConfig config = load_model_config(fixtures() + "models/qwen3_moe").value();
  const int64_t count = config.experts.num_experts, hidden = config.hidden_size, deep = config.experts.intermediate_size;
  const auto refusal = [&](const std::string& module, std::vector<int64_t> a, std::vector<int64_t> b) {
    const TempDir dir;
    const auto zeros = [](const std::vector<int64_t>& shape) {
      return bytes_of(std::vector<float>(static_cast<size_t>(shape[0] * shape[1])));
    };
    const std::string path = "base_model.model.model.layers.0.mlp.experts" + module;
    write_adapter(dir.path(), {{path + ".lora_A.weight", "F32", a, zeros(a)}, {path + ".lora_B.weight", "F32", b, zeros(b)}});
    const auto adapter = LoraAdapter::open(dir.path(), config);
    return adapter.ok() ? "" : adapter.status().message();
  };
  const auto has = [](const std::string& text, const std::string& part) { return text.find(part) != text.npos; };
  CHECK(refusal("", {count * kRank, hidden}, {2 * deep, count * kRank}) == "");
  CHECK(has(refusal("", {count * kRank, hidden}, {deep, count * kRank}), "expected those of all experts' projections"));
  CHECK(has(refusal("", {kRank, hidden}, {2 * deep, kRank}), "mlp.experts.lora_A.weight"));
  const std::string last = "." + std::to_string(count) + ".up_proj";
  CHECK(has(refusal(last, {kRank, hidden}, {deep, kRank}), last));
  CHECK(has(refusal(".0.up_proj", {kRank, deep}, {deep, kRank}), ".0.up_proj.lora_A.weight"));
}

}  // namespace
}  // namespace llmb::test
