// GGUF files of models whose layers are of several kinds, and of encoders: they answer as the Hugging Face directories
// do that they were made of (tools/golden/make_gguf_of_models.py), whose answers transformers gave.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "model/gguf_model.h"
#include "model/weight_files.h"
#include "tests/support/compare.h"
#include "tests/support/matrix_parts.h"
#include "tests/support/draft_layer_trial.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text_jobs.h"
#include "tests/unit/golden_answers.h"

namespace llmb::test {
namespace {

using nlohmann::json;

std::string fixture(const std::string& name) {
  return source_dir() + "/data/fixtures/gguf/of_models/" + name + ".gguf";
}
std::string original(const std::string& name) { return source_dir() + "/data/fixtures/" + name; }

TEST_CASE("a GGUF file of layers of several kinds answers as its model does") {
  for (const auto& [name, model] : {std::pair("qwen35", "models/qwen3_5-text"),
                                    {"qwen35moe", "models/qwen3_5_moe"},
                                    {"qwen3next", "models/qwen3_next"},
                                    {"gemma4", "models/gemma4"},
                                    {"gemma4-experts", "models/gemma4-experts"},
                                    {"gemma4-keys", "models/gemma4-keys"},
                                    {"lfm2", "models/lfm2"},
                                    {"granitehybrid", "models/granitemoehybrid"},
                                    {"granitehybrid-dense", "models/granitemoehybrid-dense"},
                                    {"nemotron_h", "models/nemotron_h"},
                                    {"nemotron_h_moe", "models/nemotron_h-experts"}}) {
    CAPTURE(name);
    const auto lines = read_json_lines(original(model) + "/golden.jsonl");
    const auto actual = golden_answers(fixture(name), lines);
    double largest = 0;
    size_t num_tokens = 0;
    for (size_t i = 0; i < lines.size(); ++i) {
      const auto expected = lines[i].at("logprobs").get<std::vector<double>>();
      CHECK(actual[i].tokens == lines[i].at("token_ids").get<std::vector<TokenId>>());
      CHECK(compare(actual[i].logprobs, expected, 0, 3e-5) == "");
      for (size_t k = 0; k < expected.size(); ++k)
        largest = std::max(largest, std::fabs(actual[i].logprobs[k] - expected[k]));
      num_tokens += expected.size();
    }
    MESSAGE(std::string(name) << ": " << num_tokens << " tokens, largest difference " << largest);
  }
}

TEST_CASE("the layer behind the last one of a GGUF file drafts as the model's own") {
  for (const auto& [name, model] : {std::pair("qwen35-mtp", "mtp/qwen3_5-text"), {"qwen3next-mtp", "mtp/qwen3_next"}}) {
    CAPTURE(name);
    auto config = load_model_config(fixture(name));
    REQUIRE_MESSAGE(config.ok(), config.status().message());
    config->mtp.is_used = true;
    const auto backend = loaded(make_cpu_backend(), *config, draft_layer_options(fixture(name), 4));
    check_draft_layer(*backend, read_json_lines(original(model) + "/golden.jsonl"));
  }
}

// A vector of length 1, as GGUF files of encoders are pooled.
json normalised(const json& vector) {
  std::vector<double> values = vector.get<std::vector<double>>();
  double length = 0;
  for (const double value : values) length += value * value;
  for (double& value : values) value /= std::sqrt(length);
  return values;
}

TEST_CASE("a GGUF file of an encoder gives its model's vectors, of its own tokens where it has a tokenizer") {
  for (const auto& [name, model, has_tokenizer] : {std::tuple("bert", "bert", true),
                                                   {"roberta", "roberta", true},
                                                   {"xlm-roberta", "xlm-roberta", false},
                                                   {"nomic-bert", "nomic_bert", true},
                                                   {"modern-bert", "modernbert", true},
                                                   {"embeddinggemma", "embeddinggemma", false}}) {
    CAPTURE(name);
    const std::vector<json> golden = read_json_lines(original("encoders/") + model + "/golden.jsonl");
    EngineJobOptions directory = encoder_job(original("encoders/") + model), options = directory;
    options.config = load_model_config(fixture(name)).value();
    CHECK(options.config.is_encoder);
    options.load.model_dir = fixture(name);
    const auto pooling = load_pooling(fixture(name), options.config, {});
    REQUIRE_MESSAGE(pooling.ok(), pooling.status().message());
    CHECK(pooling->kind == directory.load.pooling->kind);
    options.load.pooling = *pooling;
    options.defaults.embed.normalizes = true;
    if (has_tokenizer) options.tokenizer = Tokenizer::load(fixture(name)).value();
    std::vector<json> lines;
    for (const json& line : golden)
      lines.push_back(has_tokenizer ? json{{"prompt", line["text"]}} : json{{"input", line["token_ids"]}});
    const std::vector<json> records = answers_to(lines, options);
    std::vector<json> expected = golden;
    if (!pooling->layers.empty()) {  // GGUF knows neither biases nor functions of EmbeddingGemma's layers
      for (PoolingLayer& layer : directory.load.pooling->layers) layer.has_bias = false, layer.activation.reset();
      expected = answers_to(lines, directory);
    }
    double largest = 0;
    for (size_t i = 0; i < golden.size(); ++i) {
      CAPTURE(golden[i]["text"]);
      REQUIRE_MESSAGE(records[i].contains("embedding"), records[i].dump());
      CHECK(records[i]["usage"]["prompt_tokens"] == golden[i]["token_ids"].size());
      const double away = distance(records[i]["embedding"], normalised(expected[i]["embedding"]));
      CHECK(away <= 1e-6);
      largest = std::max(largest, away);
    }
    MESSAGE(std::string(name) << ": " << golden.size() << " texts, largest distance " << largest);
  }
}

TEST_CASE("a GGUF file's classification head gives its model's scores") {
  for (const auto& [name, model] :
       {std::pair("xlm-roberta-classifier", "xlm-roberta"), {"modern-bert-classifier", "modernbert"}}) {
    CAPTURE(name);
    const std::vector<json> golden = read_json_lines(original("classifiers/") + model + "/golden.jsonl");
    EngineJobOptions options = classifier_job(model);
    const Pooling of_directory = *options.load.pooling;
    options.config = load_model_config(fixture(name)).value();
    options.config.tie_word_embeddings = true;
    options.load.model_dir = fixture(name);
    const auto pooling = load_classifier(fixture(name), options.config);
    REQUIRE_MESSAGE(pooling.ok(), pooling.status().message());
    CHECK(pooling->labels == of_directory.labels);
    CHECK(pooling->kind == of_directory.kind);
    CHECK(pooling->scores == (pooling->labels.size() == 1 ? Scores::kLogistic : Scores::kSoftmax));
    options.load.pooling = *pooling;
    std::vector<json> lines, expected;
    for (const json& line : golden)
      if (line["text_2"].is_null()) lines.push_back({{"prompt", line["text_1"]}}), expected.push_back(line["scores"]);
    const std::vector<json> records = answers_to(lines, options);
    for (size_t i = 0; i < lines.size(); ++i)
      for (size_t k = 0; k < pooling->labels.size(); ++k)
        CHECK(is_within(records[i]["scores"][pooling->labels[k]], expected[i][k], 1e-5));
  }
  const auto config = load_model_config(fixture("bert-classifier")).value();
  const auto refused = load_classifier(fixture("bert-classifier"), config);
  REQUIRE(!refused.ok());
  CHECK(refused.status().message().find("leave out BERT's pooler") != std::string::npos);
  CHECK(load_classifier(fixture("bert"), load_model_config(fixture("bert")).value())
            .status()
            .message()
            .find("has no classification head") != std::string::npos);
  CHECK(load_pooling(fixture("qwen35"), load_model_config(fixture("qwen35")).value(), {})
            .status()
            .message()
            .find("has no \"qwen35.pooling_type\"") != std::string::npos);
}

// Two key heads with two value heads each; head `i` of the checkpoint is head kStored[i] of the file.
constexpr std::array<int, 4> kStored = {0, 2, 1, 3};

struct DeltaFile {
  explicit DeltaFile(int32_t value_dim) {
    config.state.kind = StateKind::kGatedDelta;
    config.state.num_key_heads = 2;
    config.state.num_value_heads = 4;
    config.state.key_dim = 8;
    config.state.value_dim = value_dim;
    writer.text("general.architecture", "qwen35");
  }
  Result<TensorView> read(const std::string& name, const std::vector<int64_t>& shape, WeightForm form) {
    bytes = writer.bytes();
    file = GgufFile::parse({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
    REQUIRE_MESSAGE(file->ok(), file->status().message());
    source = std::make_unique<GgufSource>(**file, config, pool, WeightAccess::kValues, form);
    const std::string all = "model.layers.0.linear_attn." + name;
    if (shape.size() == 2) CHECK(check_parts(*source, all, shape));
    return source->tensor(all, shape);
  }

  ModelConfig config;
  GgufWriter writer;
  std::string bytes;
  std::optional<Result<GgufFile>> file;
  ThreadPool pool{1};
  std::unique_ptr<GgufSource> source;
};

// A block of Q8_0 with scale 1.
std::string block_of(const std::vector<int>& codes) {
  std::string bytes = GgufWriter::raw(uint16_t{0x3c00});
  for (const int code : codes) bytes += static_cast<char>(code);
  return bytes;
}

// Number `col` of row `row`, whatever form the view has.
float number_at(const TensorView& view, int64_t row, int64_t col) {
  if (view.blocks == BlockFormat::kNone) return static_cast<const float*>(view.data)[row * view.cols + col];
  return static_cast<float>(
      static_cast<const int8_t*>(view.data)[row * view.row_bytes() + col / 32 * 34 + 2 + col % 32]);
}

TEST_CASE("columns of value heads are put back in order, in blocks where a head has whole ones, else as numbers") {
  for (const int32_t value_dim : {16, 32, 64})
    for (const WeightForm form : {WeightForm::kBlocks, WeightForm::kNumbers}) {
      CAPTURE(value_dim);
      DeltaFile delta(value_dim);
      const int64_t cols = 4 * value_dim;
      std::string rows;
      for (int row = 0; row < 3; ++row)
        for (int64_t col = 0; col < cols; col += 32) {
          std::vector<int> codes;
          for (int64_t c = col; c < col + 32; ++c) codes.push_back(static_cast<int>(c / value_dim * 20 + c % 7 + row));
          rows += block_of(codes);
        }
      delta.writer.tensor("blk.0.ssm_out.weight", {3, cols}, 8, rows);
      const auto view = delta.read("out_proj.weight", {3, cols}, form);
      REQUIRE_MESSAGE(view.ok(), view.status().message());
      const bool keeps = form == WeightForm::kBlocks && value_dim % 32 == 0;
      CHECK((view->blocks == BlockFormat::kQ8_0) == keeps);
      CHECK((view->blocks == BlockFormat::kNone) == !keeps);
      for (int64_t row = 0; row < 3; ++row)
        for (int64_t col = 0; col < cols; ++col) {
          const int64_t stored = kStored[col / value_dim] * value_dim + col % value_dim;
          CHECK(number_at(*view, row, col) == static_cast<float>(stored / value_dim * 20 + stored % 7 + row));
        }
    }
}

TEST_CASE("rows of value heads are put back in order and stay in blocks; decays become their logarithms again") {
  DeltaFile delta(2);
  std::string rates, inputs;
  for (int row = 0; row < 4; ++row) rates += block_of(std::vector<int>(32, row));
  for (int row = 0; row < 40; ++row) inputs += block_of(std::vector<int>(32, row));
  delta.writer.tensor("blk.0.ssm_beta.weight", {4, 32}, 8, rates);
  delta.writer.tensor("blk.0.attn_qkv.weight", {40, 32}, 8, inputs);
  delta.writer.f32_tensor("blk.0.ssm_a", {4}, {-1, -2, -4, -8});
  delta.writer.f32_tensor("blk.0.ssm_dt.bias", {4}, {0, 1, 2, 3});
  const auto view = delta.read("in_proj_b.weight", {4, 32}, WeightForm::kBlocks);
  REQUIRE_MESSAGE(view.ok(), view.status().message());
  CHECK(view->blocks == BlockFormat::kQ8_0);
  for (int64_t row = 0; row < 4; ++row) CHECK(number_at(*view, row, 5) == static_cast<float>(kStored[row]));
  const auto all = delta.read("in_proj_qkv.weight", {40, 32}, WeightForm::kBlocks);
  REQUIRE_MESSAGE(all.ok(), all.status().message());
  for (int64_t row = 0; row < 40; ++row) {
    const int64_t head = (row - 32) / 2;
    CHECK(number_at(*all, row, 0) == static_cast<float>(row < 32 ? row : 32 + kStored[head] * 2 + row % 2));
  }
  const auto decays = delta.read("A_log", {4}, WeightForm::kBlocks);
  REQUIRE_MESSAGE(decays.ok(), decays.status().message());
  for (int i = 0; i < 4; ++i) CHECK(std::fabs(number_at(*decays, 0, i) - std::log(std::exp2(kStored[i]))) <= 1e-6);
  CHECK(number_at(*delta.read("dt_bias", {4}, WeightForm::kBlocks), 0, 1) == 2);
  for (const float bad : {0.0f, 1.0f, NAN, -INFINITY}) {
    DeltaFile hostile(2);
    hostile.writer.f32_tensor("blk.0.ssm_a", {4}, {-1, bad, -1, -1});
    const auto refused = hostile.read("A_log", {4}, WeightForm::kBlocks);
    REQUIRE(!refused.ok());
    CHECK(refused.status().message().find("\"blk.0.ssm_a\" holds a number that is not below 0") != std::string::npos);
  }
}

}  // namespace
}  // namespace llmb::test
