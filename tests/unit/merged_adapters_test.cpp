// Adapters that are merged into the weights on the CPU (AdapterLibrary::merge): PEFT's answers, the same bits beside
// other rows and alone.
#include <doctest/doctest.h>

#include "backend/cpu/merged_weights.h"
#include "base/float_formats.h"
#include "tests/support/adapted_models.h"
#include "tests/support/kernel_support.h"

namespace llmb::test {
namespace {

void check_merged(const std::string& name) {
  CAPTURE(name);
  const AdaptedModel model = adapted_model(name);
  const auto beside = generate_one_by_one(*load_adapted(name, model, int64_t{1} << 30), model.requests, 64);
  for (int32_t id = 0; id < model.library->size(); ++id)
    if (id % 3 != 1) model.library->merge(id);  // others stay beside the weights, in the same steps
  const auto expected = generate_one_by_one(*load_adapted(name, model, int64_t{1} << 30), model.requests, 64);
  CHECK((expected == generate_at_random(*load_adapted(name, model, 0), model.requests, 23, 6, 2)));
  CHECK((expected == generate_at_random(*load_adapted(name, model, int64_t{1} << 30), model.requests, 40, 32, 3)));
  bool has_other_bits = false;
  for (size_t i = 0; i < model.requests.size(); ++i) {
    CAPTURE(i);
    const int32_t adapter = model.requests[i].adapter;
    if (adapter < 0 || adapter % 3 == 1) {
      CHECK((expected[i] == beside[i]));
      continue;
    }
    has_other_bits |= expected[i].logprobs != beside[i].logprobs;
    if (model.config.dtype != DType::kF32) continue;  // rounding to two bytes shows
    CHECK(expected[i].tokens == model.lines[i].at("token_ids").get<std::vector<TokenId>>());
    CHECK(largest_difference(expected[i], model.lines[i]) <= 1e-5);
  }
  CHECK(has_other_bits);
}

TEST_CASE("merged adapters give PEFT's tokens and logits, and the same bits whatever runs beside them") {
  for (const char* name : {"llama-gqa", "qwen3_5-text", "qwen3_next", "granitemoehybrid"}) check_merged(name);
}

TEST_CASE("merged adapters of every golden model give the tokens and logits of PEFT's merge_and_unload()") {
  int num_models = 0, num_answers = 0;
  for (const std::string& name : adapted_models()) {
    const AdaptedModel model = adapted_model(name);
    std::vector<GenerateRequest> requests;
    std::vector<nlohmann::json> expected;
    for (int32_t id = 0; id < model.library->size(); ++id) {
      model.library->merge(id);
      const std::string folder = fixtures() + "adapters/" + name + "/" + model.library->name(id);
      const std::string golden = folder + "/golden_merged.jsonl";
      if (!std::filesystem::exists(golden)) continue;  // it is not the same there (make_golden_adapters.py)
      for (const nlohmann::json& line : read_json_lines(golden)) {
        GenerateRequest& request = requests.emplace_back();
        request.prompt = line.at("prompt_token_ids").get<std::vector<TokenId>>();
        request.num_tokens = static_cast<int32_t>(line.at("token_ids").size());
        request.sampling.num_logprobs = model.config.vocab_size;
        request.adapter = id;
        expected.push_back(line);
      }
    }
    const auto answers = generate_one_by_one(*load_adapted(name, model, int64_t{1} << 30), requests, 64);
    for (size_t i = 0; i < answers.size(); ++i) {
      CAPTURE(name);
      CAPTURE(i);
      CHECK(answers[i].tokens == expected[i].at("token_ids").get<std::vector<TokenId>>());
      // A sum in another order may round a weight of two bytes to its other neighbour.
      CHECK(largest_difference(answers[i], expected[i]) <= (model.config.dtype == DType::kF32 ? 1e-5 : 2e-4));
      ++num_answers;
    }
    ++num_models;
  }
  CHECK(num_models >= 8);
  CHECK(num_answers >= 3 * 12);
}

TEST_CASE("a merged weight is W + scale * B A, rounded once to the dtype of W; its bias stays") {
  ThreadPool pool(1);
  const int64_t out = 83, in = 37, rank = 3, first = 16, columns = 50;
  const std::vector<float> w = random_normal(out * in, 1), a = random_normal(rank * in, 2),
                           b = random_normal(columns * rank, 3);
  const std::vector<float> bias = random_normal(out, 4);
  std::vector<uint16_t> halves;
  for (const float value : w) halves.push_back(f32_to_bf16(value));
  LoraModule module;
  module.a = {a.data(), DType::kF32, rank, in};
  module.b = {b.data(), DType::kF32, columns, rank};
  module.scale = 0.5f;
  module.out_column = first;
  for (int64_t i = 0; i < columns; ++i) module.b_rows.push_back(static_cast<int32_t>((i * 7) % columns));
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const TensorView view{dtype == DType::kF32 ? static_cast<const void*>(w.data()) : halves.data(), dtype, out, in};
    const TensorView biases{bias.data(), DType::kF32, 1, out};
    const auto weight = cpu::PackedLinear::pack({&view, 1}, {&biases, 1}, pool);
    REQUIRE(can_merge(weight));
    const auto merged = merged_weight(weight, {&module, 1}, DType::kF32, pool);
    CHECK(merged.format() == weight.format());
    for (int64_t row = 0; row < out; ++row) {
      CHECK(merged.bias()[row] == bias[row]);
      std::vector<float> values(in);
      const auto id = static_cast<TokenId>(row);
      cpu::embedding(merged, &id, 1, values.data(), pool);
      for (int64_t k = 0; k < in; ++k) {
        const double before = dtype == DType::kF32 ? w[row * in + k] : bf16_to_f32(halves[row * in + k]);
        double expected = before;
        for (int64_t r = 0; r < rank && row >= first && row < first + columns; ++r)
          expected += 0.5 * b[module.b_rows[row - first] * rank + r] * a[r * in + k];
        const double rounding = dtype == DType::kF32 ? 1e-6 : 4e-3;
        CHECK(std::fabs(values[k] - expected) <= rounding * std::max(1.0, std::fabs(expected)));
        if (row < first || row >= first + columns) CHECK(values[k] == before);
      }
    }
  }
}

}  // namespace
}  // namespace llmb::test
