// A layer of EAGLE's on the CPU: its definition's tokens behind golden models, and which folders are refused.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "model/config_loader.h"
#include "model/eagle_layer.h"
#include "tests/support/draft_layer_ranks.h"
#include "tests/support/draft_layer_trial.h"
#include "tests/support/golden.h"
#include "tests/support/process.h"
#include "tests/support/thread_ranks.h"

namespace llmb::test {

namespace {

const std::string kFixtures = source_dir() + "/data/fixtures/";

std::string layer_of(const std::string& model) { return kFixtures + "eagle/" + model; }

ModelConfig config_of(const std::string& model) {
  Result<ModelConfig> config = load_model_config(kFixtures + "models/" + model);
  REQUIRE(config.ok());
  return *config;
}

// The message of opening a copy of Llama's layer with fields of its config changed.
std::string refusal(const nlohmann::json::object_t& fields, const std::string& model = "llama-gqa") {
  const TemporaryDirectory dir;
  nlohmann::json config = nlohmann::json::parse(read_file(layer_of("llama-gqa") + "/config.json"));
  config.update(nlohmann::json(fields));
  write_file(dir.file("config.json"), config.dump());
  std::filesystem::copy(layer_of("llama-gqa") + "/model.safetensors", dir.file("model.safetensors"));
  const auto files = EagleFiles::open(dir.path(), config_of(model));
  return files.ok() ? "" : files.status().message();
}

}  // namespace

TEST_CASE("a layer of EAGLE's gives its definition's best tokens, one behind the other") {
  for (const std::string layer : {"llama-gqa", "qwen3", "qwen3_moe", "llama-gqa-3", "qwen3-3"}) {
    CAPTURE(layer);
    const std::string model = layer.ends_with("-3") ? layer.substr(0, layer.size() - 2) : layer;
    ModelConfig config = config_of(model);
    const auto files = EagleFiles::open(layer_of(layer), config);
    REQUIRE_MESSAGE(files.ok(), files.status().message());
    files->describe(&config);
    const auto lines = read_json_lines(layer_of(layer) + "/golden.jsonl");
    for (const int32_t block_size : {4, 16}) {
      CAPTURE(block_size);
      LoadOptions options = draft_layer_options(kFixtures + "models/" + model, block_size);
      options.eagle_dir = layer_of(layer);
      const auto backend = loaded(make_cpu_backend(), config, options);
      check_draft_layer(*backend, lines);
    }
    LoadOptions options = draft_layer_options(kFixtures + "models/" + model, 4);
    options.eagle_dir = layer_of(layer);
    check_draft_layer_over_ranks(config, options, lines);
    options.num_threads = 1;
    if (layer == "llama-gqa-3") check_draft_layer(*loaded(make_thread_ranks(4), config, options), lines);
  }
}

// A copy of Llama's layer whose MLP has more columns, which are zeros and change nothing.
void write_widened_layer(const TemporaryDirectory& dir, int64_t columns) {
  using nlohmann::json;
  json config = json::parse(read_file(layer_of("llama-gqa") + "/config.json"));
  const int64_t hidden = config["hidden_size"], before = config["intermediate_size"];
  config["intermediate_size"] = columns;
  write_file(dir.file("config.json"), config.dump());
  const std::string stored = read_file(layer_of("llama-gqa") + "/model.safetensors");
  uint64_t header_size = 0;
  std::memcpy(&header_size, stored.data(), 8);
  json header = json::parse(stored.substr(8, header_size));
  header.erase("__metadata__");
  std::string data;
  for (auto& [name, tensor] : header.items()) {
    const size_t begin = tensor["data_offsets"][0], end = tensor["data_offsets"][1];
    std::string bytes = stored.substr(8 + header_size + begin, end - begin);
    if (name.find("mlp.") != std::string::npos) {
      const bool is_down = name.find("down_proj") != std::string::npos;
      const auto wide = static_cast<size_t>(2 * columns), narrow = static_cast<size_t>(2 * before);  // of down's rows
      for (int64_t row = hidden; is_down && row > 0; --row)
        bytes.insert(static_cast<size_t>(row) * narrow, wide - narrow, '\0');
      if (!is_down) bytes.resize(static_cast<size_t>(2 * columns * hidden), '\0');
      tensor["shape"] = is_down ? json{hidden, columns} : json{columns, hidden};
    }
    tensor["data_offsets"] = {data.size(), data.size() + bytes.size()};
    data += bytes;
  }
  const std::string text = header.dump();
  const uint64_t size = text.size();
  write_file(dir.file("model.safetensors"), std::string(reinterpret_cast<const char*>(&size), 8) + text + data);
}

TEST_CASE("behind a model whose MLPs are divided by blocks of few bits the layer's is, too") {
  const TemporaryDirectory dir;
  write_widened_layer(dir, 640);  // 320 and 320 columns for two ranks, or 384 and 256
  ModelConfig config = config_of("llama-gqa");
  config.is_dequantised = true;
  const auto files = EagleFiles::open(dir.path(), config);
  REQUIRE_MESSAGE(files.ok(), files.status().message());
  files->describe(&config);
  LoadOptions options = draft_layer_options(kFixtures + "models/llama-gqa", 16);
  options.num_threads = 1;
  options.eagle_dir = dir.path();
  check_draft_layer(*loaded(make_thread_ranks(2), config, options),
                    read_json_lines(layer_of("llama-gqa") + "/golden.jsonl"));
}

TEST_CASE("biases are found by their tensors, whatever the config says of them") {
  const TemporaryDirectory dir;
  const std::string layer = layer_of("qwen3_moe");
  nlohmann::json fields = nlohmann::json::parse(read_file(layer + "/config.json"));
  REQUIRE(fields.erase("attention_bias") == 1);
  write_file(dir.file("config.json"), fields.dump());
  std::filesystem::copy(layer + "/model.safetensors", dir.file("model.safetensors"));
  ModelConfig config = config_of("qwen3_moe");
  const auto files = EagleFiles::open(dir.path(), config);
  REQUIRE_MESSAGE(files.ok(), files.status().message());
  files->describe(&config);
  LoadOptions options = draft_layer_options(kFixtures + "models/qwen3_moe", 16);
  options.eagle_dir = dir.path();
  const auto backend = loaded(make_cpu_backend(), config, options);
  check_draft_layer(*backend, read_json_lines(layer + "/golden.jsonl"));
}

TEST_CASE("layers that do not fit are refused by name") {
  CHECK(refusal({}) == "");
  CHECK(refusal({{"hidden_size", 64}}).find("its layer has hidden_size 64, the model 32") != std::string::npos);
  CHECK(refusal({{"num_attention_heads", 8}}).find("its layer has num_attention_heads 8, the model 4") !=
        std::string::npos);
  CHECK(refusal({{"num_key_value_heads", 4}}).find("its layer has num_key_value_heads 4, the model 2") !=
        std::string::npos);
  CHECK(refusal({{"head_dim", 16}}).find("its layer has head_dim 16, the model 8") != std::string::npos);
  CHECK(refusal({{"vocab_size", 64}}).find("its layer has vocab_size 64, the model 128") != std::string::npos);
  CHECK(refusal({{"num_hidden_layers", 2}}).find("has 2 layers; EAGLE's has one") != std::string::npos);
  CHECK(refusal({{"hidden_act", "gelu"}}).find("activation is another than the model's") != std::string::npos);
  CHECK(refusal({{"intermediate_size", 40}}).find("layers.0.mlp") != std::string::npos);
  CHECK(refusal({}, "gemma2").find("built as Llama is, not for \"gemma2\"") != std::string::npos);
  CHECK(refusal({}, "mistral-window").find("built as Llama is") != std::string::npos);
  CHECK(refusal({}, "deepseek_v3").find("built as Llama is") != std::string::npos);
}

TEST_CASE("a folder without tensors, or with pickled ones, says so") {
  const TemporaryDirectory dir;
  const ModelConfig model = config_of("llama-gqa");
  CHECK(EagleFiles::open(dir.path(), model).status().message().find("config.json") != std::string::npos);
  write_file(dir.file("config.json"), read_file(layer_of("llama-gqa") + "/config.json"));
  CHECK(!EagleFiles::open(dir.path(), model).ok());
  write_file(dir.file("pytorch_model.bin"), "PK");
  CHECK(EagleFiles::open(dir.path(), model).status().message().find("is pickled: convert it there with python3") !=
        std::string::npos);
}

TEST_CASE("a layer of EAGLE-3's: what it lacks is named") {
  const auto refusal = [](const nlohmann::json::object_t& fields, const std::string& from, const std::string& to) {
    const TemporaryDirectory dir;
    const std::string layer = layer_of("llama-gqa-3");
    nlohmann::json config = nlohmann::json::parse(read_file(layer + "/config.json"));
    config.update(nlohmann::json(fields));
    write_file(dir.file("config.json"), config.dump());
    std::string weights = read_file(layer + "/model.safetensors");
    if (const size_t at = weights.find(from); at != std::string::npos) weights.replace(at, from.size(), to);
    write_file(dir.file("model.safetensors"), weights);
    const auto files = EagleFiles::open(dir.path(), config_of("llama-gqa"));
    return files.ok() ? "" : files.status().message();
  };
  CHECK(refusal({}, "no such name", "") == "");
  CHECK(refusal({}, "\"d2t\"", "\"d3t\"").find("has no tensor \"d2t\"") != std::string::npos);
  CHECK(refusal({}, "\"norm.weight\"", "\"n0rm.weight\"").find("norm.weight") != std::string::npos);
  CHECK(refusal({{"norm_before_residual", true}}, "no such name", "").find("norm_before_residual") !=
        std::string::npos);
  CHECK(refusal({{"draft_vocab_size", 70}}, "no such name", "").find("d2t") != std::string::npos);
  CHECK(refusal({{"draft_vocab_size", 1000}}, "no such name", "").find("draft_vocab_size") != std::string::npos);
  CHECK(refusal({{"eagle_config", nullptr}}, "no such name", "").find("eagle_aux_hidden_state_layer_ids") !=
        std::string::npos);
  const nlohmann::json beyond = {{"eagle_aux_hidden_state_layer_ids", {0, 1, 9}}};
  CHECK(refusal({{"eagle_config", beyond}}, "no such name", "").find("eagle_aux_hidden_state_layer_ids") !=
        std::string::npos);
}

TEST_CASE("rows of EAGLE-3's head that are of no token are refused") {
  for (const int64_t offset : {int64_t{-1}, int64_t{128}, INT64_MAX, INT64_MIN}) {
    const TemporaryDirectory dir;
    const std::string layer = layer_of("llama-gqa-3");
    write_file(dir.file("config.json"), read_file(layer + "/config.json"));
    std::string weights = read_file(layer + "/model.safetensors");
    uint64_t header_size = 0;
    std::memcpy(&header_size, weights.data(), 8);
    const size_t at = nlohmann::json::parse(weights.substr(8, header_size))["d2t"]["data_offsets"][0].get<size_t>();
    std::memcpy(weights.data() + 8 + header_size + at, &offset, sizeof offset);
    write_file(dir.file("model.safetensors"), weights);
    const auto files = EagleFiles::open(dir.path(), config_of("llama-gqa"));
    REQUIRE(!files.ok());
    CHECK(files.status().message().find("row 0 is of no token of the model") != std::string::npos);
  }
}

}  // namespace llmb::test
