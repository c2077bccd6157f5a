// Encoders: texts become the vectors that sentence-transformers makes of them (tools/golden/make_golden_encoders.py).
#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text_jobs.h"
#include "tests/support/thread_ranks.h"

namespace llmb::test {
namespace {

using nlohmann::json;

TEST_CASE("encoders' vectors equal sentence-transformers', and are the same bytes whatever the schedule") {
  for (const std::string& dir : encoder_dirs()) {
    CAPTURE(dir);
    const std::vector<json> golden = read_json_lines(dir + "/golden.jsonl");
    REQUIRE(golden.size() >= 11);
    std::vector<json> lines, texts;
    for (const json& line : golden) {
      lines.push_back({{"prompt", line["text"]}});
      texts.push_back(line["text"]);
    }
    lines.push_back({{"input", {texts[10], texts[0], texts[1]}}});
    lines.push_back({{"input", golden[1]["token_ids"]}});
    EngineJobOptions options = encoder_job(dir);
    const std::vector<json> records = answers_to(lines, options);
    for (size_t i = 0; i < golden.size(); ++i) {
      CAPTURE(texts[i]);
      REQUIRE_MESSAGE(records[i].contains("embedding"), records[i].dump());
      CHECK(records[i]["usage"]["prompt_tokens"] == golden[i]["token_ids"].size());
      CHECK(distance(records[i]["embedding"], golden[i]["embedding"]) <= 1e-6);
    }
    const json several = {records[10]["embedding"], records[0]["embedding"], records[1]["embedding"]};
    CHECK(records[golden.size()]["embeddings"] == several);
    CHECK(records.back()["embedding"] == records[1]["embedding"]);
    for (const int variant : {0, 1}) {
      options.scheduler.max_num_seqs = variant == 0 ? 1 : 32;
      options.scheduler.max_num_batched_tokens = variant == 0 ? 318 : 2000;
      options.scheduler.block_size = variant == 0 ? 4 : 16;
      options.scheduler.num_blocks = variant == 0 ? 80 : 300;
      options.load.num_threads = 1 + variant;
      CHECK(answers_to(lines, options) == records);
    }
  }
}

TEST_CASE("over tensor-parallel ranks encoders' vectors equal sentence-transformers', too") {
  size_t num_divided = 0;
  for (const std::string& dir : encoder_dirs()) {
    CAPTURE(dir);
    EngineJobOptions options = encoder_job(dir);
    options.load.num_threads = 1;
    if (!check_ranks(options.config, 2, 1).ok()) continue;
    options.make_backend = [] { return make_thread_ranks(2); };
    const std::vector<json> golden = read_json_lines(dir + "/golden.jsonl");
    std::vector<json> lines;
    for (const json& line : golden) lines.push_back({{"prompt", line["text"]}});
    const std::vector<json> records = answers_to(lines, options);
    for (size_t i = 0; i < golden.size(); ++i) {
      REQUIRE_MESSAGE(records[i].contains("embedding"), records[i].dump());
      CHECK(distance(records[i]["embedding"], golden[i]["embedding"]) <= 1e-6);
    }
    options.scheduler.max_num_seqs = 1;
    CHECK(answers_to(lines, options) == records);
    ++num_divided;
  }
  CHECK(num_divided >= 5);
}

TEST_CASE("over stages and context ranks, which may divide keys and values, encoders' vectors have the bytes of one rank") {
  size_t num_divided = 0;
  for (const std::string& dir : encoder_dirs()) {
    CAPTURE(dir);
    EngineJobOptions options = encoder_job(dir);
    options.load.num_threads = 1;
    std::vector<json> lines;
    for (const json& line : read_json_lines(dir + "/golden.jsonl")) lines.push_back({{"prompt", line["text"]}});
    const std::vector<json> records = answers_to(lines, options);
    const int32_t block_size = options.scheduler.block_size;
    for (const RankPart& grid : {RankPart{.num_stages = 2}, RankPart{.context_size = 2},
                                 RankPart{.num_stages = 2, .context_size = 2},
                                 RankPart{.context_size = 2, .divides_kv = true},
                                 RankPart{.num_stages = 2, .context_size = 3, .divides_kv = true}}) {
      if (options.config.num_hidden_layers < grid.num_stages) continue;
      options.make_backend = [grid] {
        return make_thread_ranks(1, grid.num_stages, 0, nullptr, grid.context_size, grid.divides_kv);
      };
      options.scheduler.num_alternating = grid.num_stages;
      options.scheduler.block_size = grid.divides_kv ? grid.context_size * kSliceTokens : block_size;
      CHECK(answers_to(lines, options) == records);
      ++num_divided;
    }
  }
  CHECK(num_divided >= 25);
}

TEST_CASE("a text as long as the model's positions is encoded, a longer one is an error or cut") {
  const std::string dir = source_dir() + "/data/fixtures/encoders/bert";
  EngineJobOptions options = encoder_job(dir);
  options.scheduler.max_model_len = 8;
  const auto records = answers_to({{{"prompt_token_ids", {2, 7, 8, 9, 10, 11, 12, 3}}},
                                   {{"prompt_token_ids", {2, 7, 8, 9, 10, 11, 12, 13, 3}}},
                                   {{"prompt", "what is the capital of France?"}},
                                   {{"prompt", "what is the capital of France?"}, {"truncate_prompt_tokens", 6}}},
                                  options);
  CHECK(records[0].contains("embedding"));
  for (const size_t i : {1, 2}) CHECK(records[i]["error"]["code"] == "prompt_too_long");
  CHECK(records[1]["error"]["message"].get<std::string>().find("has 9 tokens; at most 8 are computed") !=
        std::string::npos);
  REQUIRE_MESSAGE(records[3].contains("embedding"), records[3].dump());
  CHECK(records[3]["usage"]["prompt_tokens"] == 6);
}

TEST_CASE("FAULTS 31: a module's folder that leads out of the model's is refused, and is none of the model's files") {
  const TempDir dir;
  ModelConfig config;
  config.hidden_size = 8;
  for (const char* path : {"../1_Pooling", "/etc", "a/../../b", "a/.."}) {
    CAPTURE(path);
    for (const char* type : {"Pooling", "Dense"}) {
      write_file(dir / "modules.json",
                 json::array({{{"path", path}, {"type", "sentence_transformers.models." + std::string(type)}}}).dump());
      CHECK(load_pooling(dir.path(), config, {}).status().message().find("leads out of") != std::string::npos);
      CHECK(pooling_layer_folders(dir.path()).empty());
    }
  }
  write_file(dir / "modules.json", R"([{"path": "dense/1", "type": "sentence_transformers.models.Dense"}])");
  CHECK(pooling_layer_folders(dir.path()) == std::vector<std::string>{"dense/1"});
}

TEST_CASE("prompts are read from sentence-transformers files") {
  const TempDir dir;
  const auto load = [&] { return load_text_prompts(dir.path()); };
  const auto write = [&](const char* text) { write_file(dir / "config_sentence_transformers.json", text); };
  CHECK(load().value().texts.empty());
  write(R"({"prompts": {"query": "query: ", "document": "", "other": null}, "default_prompt_name": "query"})");
  CHECK(load().value().texts == std::map<std::string, std::string>{{"query", "query: "}});
  CHECK(load().value().default_name == "query");
  write(R"({"prompts": {"query": "query: "}, "default_prompt_name": null})");
  CHECK(load().value().default_name.empty());
  for (const char* text : {R"({"prompts": []})", R"({"prompts": {"a": 5}})", R"({"default_prompt_name": "a"})", "[]",
                           R"({"prompts": {"a": "b"}, "default_prompt_name": 5})"}) {
    CAPTURE(text);
    write(text);
    CHECK(!load().ok());
  }
}

TEST_CASE("pooling is read from sentence-transformers files") {
  const TempDir dir;
  ModelConfig config;
  config.hidden_size = 8;
  const auto load = [&](std::optional<PoolingKind> given = {}) { return load_pooling(dir.path(), config, given); };
  const auto refusal = [&] { return load().status().message(); };
  CHECK(load(PoolingKind::kLast).ok());
  CHECK(load(PoolingKind::kMean).value().normalizes);
  CHECK(refusal().find("modules.json") != std::string::npos);
  const auto write = [&](const std::vector<std::string>& types) {
    json modules = json::array();
    for (const std::string& type : types) {
      const std::string path = type == "Transformer" ? "" : "1_" + type;
      modules.push_back({{"path", path}, {"type", "sentence_transformers.models." + type}});
    }
    write_file(dir / "modules.json", modules.dump());
  };
  for (const char* name : {"1_Pooling", "1_Dense"}) std::filesystem::create_directory(dir / name);
  const auto write_kind = [&](const json& members) { write_file(dir / "1_Pooling/config.json", members.dump()); };
  write({"Transformer", "Pooling"});
  const std::vector<std::pair<json, PoolingKind>> kinds = {
      {{{"word_embedding_dimension", 8}, {"pooling_mode_cls_token", false}, {"pooling_mode_lasttoken", true}},
       PoolingKind::kLast},
      {{{"pooling_mode_mean_tokens", true}}, PoolingKind::kMean},
      {{{"pooling_mode_cls_token", true}, {"include_prompt", true}}, PoolingKind::kFirst},
      {{{"pooling_mode", "mean"}}, PoolingKind::kMean},
      {{{"pooling_mode", {"cls"}}}, PoolingKind::kFirst}};
  for (const auto& [members, kind] : kinds) {
    write_kind(members);
    REQUIRE_MESSAGE(load().ok(), refusal());
    CHECK(load().value().kind == kind);
    CHECK(!load().value().normalizes);
  }
  write({"Transformer", "Pooling", "Normalize"});
  CHECK(load().value().normalizes);
  const std::vector<json> refused = {{{"pooling_mode_max_tokens", true}},
                                     {{"pooling_mode", {"cls", "mean"}}},
                                     {{"pooling_mode_cls_token", true}, {"pooling_mode_mean_tokens", true}},
                                     {{"a", 1}}};
  for (const json& members : refused) {
    write_kind(members);
    CHECK(refusal().find("pooling_mode") != std::string::npos);
  }
  write_kind({{"pooling_mode_mean_tokens", true}});
  write({"Transformer", "Pooling", "Dense", "Normalize"});
  const auto write_dense = [&](const json& members) { write_file(dir / "1_Dense/config.json", members.dump()); };
  write_dense({{"in_features", 8}, {"out_features", 3}, {"activation_function", "torch.nn.modules.linear.Identity"}});
  REQUIRE_MESSAGE(load().ok(), refusal());
  const std::vector<PoolingLayer> layers = load().value().layers;
  CHECK((layers.size() == 1 && layers[0].out_features == 3 && !layers[0].activation));
  write_dense({{"in_features", 9}, {"out_features", 3}});
  CHECK(refusal().find("in_features") != std::string::npos);
  const std::vector<std::pair<std::string, Activation>> functions = {
      {"Tanh", Activation::kTanh}, {"ReLU", Activation::kRelu}, {"GELU", Activation::kGelu}, {"SiLU", Activation::kSilu}};
  for (const auto& [name, function] : functions) {
    write_dense({{"in_features", 8},
                 {"out_features", 3},
                 {"bias", true},
                 {"activation_function", "torch.nn.modules.activation." + name}});
    REQUIRE_MESSAGE(load().ok(), refusal());
    CHECK(load().value().layers[0].activation == function);
    CHECK(load().value().layers[0].has_bias);
  }
  for (const char* name : {"torch.nn.modules.activation.Softmax", "torch.nn.LeakyReLU", "GeLU", "."}) {
    write_dense({{"in_features", 8}, {"out_features", 3}, {"activation_function", name}});
    CHECK(refusal().find("\"" + std::string(name) + "\" is not supported; supported: torch.nn's Identity, Tanh") !=
          std::string::npos);
  }
  const std::vector<std::vector<std::string>> orders = {
      {"Transformer", "Dense"}, {"Transformer", "Pooling", "Normalize", "Dense"}, {"Transformer", "Pooling", "LSTM"}};
  for (const std::vector<std::string>& types : orders) {
    write(types);
    CHECK(refusal().find(types.back()) != std::string::npos);
  }
  write_file(dir / "modules.json", R"([{"type": 5, "path": []}])");
  CHECK(refusal().find("module \"\" is not supported") != std::string::npos);
}

TEST_CASE("the longest text of a model is read from sentence-transformers files") {
  const TempDir dir;
  CHECK(!load_max_seq_length(dir.path()).value().has_value());
  write_file(dir / "sentence_bert_config.json", R"({"max_seq_length": 256, "do_lower_case": false})");
  CHECK(load_max_seq_length(dir.path()).value() == 256);
  for (const char* text : {R"({"max_seq_length": 0})", R"({"do_lower_case": true})", "[]", ""}) {
    write_file(dir / "sentence_bert_config.json", text);
    CHECK(!load_max_seq_length(dir.path()).ok());
  }
}

}  // namespace
}  // namespace llmb::test
