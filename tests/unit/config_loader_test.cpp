#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/architecture.h"
#include "model/config_loader.h"
#include "model/rope_table.h"
#include "tests/support/source_dir.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace llmb::test {
namespace {

nlohmann::json good_config() {
  return {{"model_type", "llama"},         {"vocab_size", 100},      {"hidden_size", 64},
          {"intermediate_size", 128},      {"num_hidden_layers", 2}, {"num_attention_heads", 8},
          {"max_position_embeddings", 512}};
}

Result<ModelConfig> parse(const nlohmann::json& json) { return parse_model_config(json.dump()); }

ModelConfig parsed(const nlohmann::json& json) {
  const auto config = parse(json);
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  return *config;
}

// The config with one field replaced; null removes it.
nlohmann::json with(const char* field, const nlohmann::json& value, nlohmann::json json = good_config()) {
  json[field] = value;
  return json;
}

nlohmann::json of_type(const char* model_type) {
  return with("model_type", model_type, with("num_key_value_heads", 8));
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_CASE("absent fields get Hugging Face's defaults") {
  const ModelConfig c = parsed(good_config());
  CHECK(c.num_key_value_heads == 8);
  CHECK(c.head_dim == 8);
  CHECK(c.norm_eps == 1e-6);
  CHECK(c.ropes[0].theta == 10000);
  CHECK(c.ropes[0].scaling.kind == RopeScalingKind::kNone);
  CHECK_FALSE(c.qkv_bias);
  CHECK_FALSE(c.mlp_bias);
  CHECK_FALSE(c.tie_word_embeddings);
  CHECK(c.eos_token_ids.empty());
  CHECK(c.dtype == DType::kF32);
}

TEST_CASE("fields are read, by their old and new names") {
  CHECK(parsed(with("head_dim", 16)).head_dim == 16);
  CHECK(parsed(with("num_key_value_heads", 2)).num_key_value_heads == 2);
  CHECK(parsed(with("torch_dtype", "bfloat16")).dtype == DType::kBF16);
  CHECK(parsed(with("dtype", "float16")).dtype == DType::kF16);
  CHECK(parsed(with("eos_token_id", 7)).eos_token_ids == std::vector<TokenId>{7});
  CHECK(parsed(with("eos_token_id", {7, 9})).eos_token_ids == std::vector<TokenId>{7, 9});
  CHECK(parsed(with("eos_token_id", nullptr)).eos_token_ids.empty());
  CHECK(parsed(with("rope_theta", 500000)).ropes[0].theta == 500000);
  CHECK(parsed(with("tie_word_embeddings", true)).tie_word_embeddings);
  const ModelConfig biased = parsed(with("attention_bias", true, with("mlp_bias", true)));
  CHECK(biased.qkv_bias);
  CHECK(biased.o_bias);
  CHECK(biased.mlp_bias);
  const ModelConfig qwen = parsed(of_type("qwen2"));
  CHECK(qwen.qkv_bias);
  CHECK_FALSE(qwen.o_bias);
  CHECK_FALSE(parsed(of_type("mistral")).qkv_bias);
}

TEST_CASE("rope scaling is read from rope_scaling and from rope_parameters") {
  const nlohmann::json llama3 = {{"rope_type", "llama3"},
                                 {"factor", 8.0},
                                 {"low_freq_factor", 1.0},
                                 {"high_freq_factor", 4.0},
                                 {"original_max_position_embeddings", 64}};
  const ModelConfig old_style = parsed(with("rope_scaling", llama3, with("rope_theta", 5e5)));
  auto parameters = llama3;
  parameters["rope_theta"] = 5e5;
  const ModelConfig new_style = parsed(with("rope_parameters", parameters));
  for (const ModelConfig& c : {old_style, new_style}) {
    CHECK(c.ropes[0].scaling.kind == RopeScalingKind::kLlama3);
    CHECK(c.ropes[0].scaling.factor == 8);
    CHECK(c.ropes[0].scaling.original_max_position_embeddings == 64);
    CHECK(c.ropes[0].theta == 5e5);
  }
  CHECK(parsed(with("rope_scaling", {{"type", "linear"}, {"factor", 2}})).ropes[0].scaling.kind ==
        RopeScalingKind::kLinear);
  CHECK(parsed(with("rope_scaling", {{"rope_type", "default"}})).ropes[0].scaling.kind == RopeScalingKind::kNone);
  CHECK(parsed(with("rope_scaling", nullptr)).ropes[0].scaling.kind == RopeScalingKind::kNone);
}

TEST_CASE("what is not built or makes no sense is refused by name") {
  struct Case {
    const char* field;
    nlohmann::json value;
    const char* message;
  };
  const Case cases[] = {
      {"model_type", "mamba", "model_type \"mamba\" is not supported; supported: arcee, bert, bloom, camembert, codegen, "},
      {"model_type", nullptr, "\"model_type\" is missing"},
      {"model_type", 5, "\"model_type\" is 5, expected a string"},
      {"hidden_act", "mish", "\"hidden_act\" \"mish\""},
      {"quantization_config", {{"quant_method", "hqq"}}, "quant_method \"hqq\""},
      {"torch_dtype", "float8_e4m3fn", "dtype \"float8_e4m3fn\""},
      {"num_attention_heads", 0, "\"num_attention_heads\" is 0"},
      {"num_attention_heads", -8, "\"num_attention_heads\" is -8"},
      {"num_attention_heads", 7, "not a multiple of \"num_attention_heads\" 7"},
      {"num_attention_heads", 64, "head_dim 1"},
      {"num_key_value_heads", 0, "\"num_key_value_heads\" is 0"},
      {"num_key_value_heads", 3, "not a multiple of \"num_key_value_heads\" 3"},
      {"num_key_value_heads", 16, "not a multiple of"},
      {"num_hidden_layers", 0, "\"num_hidden_layers\""},
      {"num_hidden_layers", 1000000000, "\"num_hidden_layers\" is 1000000000, expected an integer from 1 to 1024"},
      {"vocab_size", nullptr, "\"vocab_size\" is missing"},
      {"vocab_size", 1ull << 63, "\"vocab_size\""},
      {"vocab_size", 100.5, "\"vocab_size\" is 100.5"},
      {"vocab_size", "100", "\"vocab_size\" is \"100\""},
      {"hidden_size", 1 << 30, "\"hidden_size\""},
      {"intermediate_size", 0, "\"intermediate_size\""},
      {"max_position_embeddings", 0, "\"max_position_embeddings\""},
      {"head_dim", 7, "head_dim 7"},
      {"head_dim", 0, "\"head_dim\" is 0"},
      {"head_dim", 100000, "\"head_dim\" is 100000"},
      {"rms_norm_eps", -1e-5, "\"rms_norm_eps\""},
      {"rms_norm_eps", "NaN", "\"rms_norm_eps\" is \"NaN\""},
      {"rms_norm_eps", 1e30, "\"rms_norm_eps\""},
      {"rope_theta", 0, "\"rope_theta\""},
      {"rope_theta", {1}, "\"rope_theta\" is a list"},
      {"partial_rotary_factor", 0.5, "\"partial_rotary_factor\""},
      {"rope_scaling",
       {{"rope_type", "axial"}, {"factor", 4}},
       "rope scaling \"axial\" is not supported"},
      {"rope_scaling", {{"type", "dynamic"}, {"factor", 0.5}}, "\"factor\" of at least 1"},
      {"rope_scaling", {{"type", "yarn"}, {"factor", 4}, {"rope_theta", 1}}, "\"rope_theta\" above 1"},
      {"rope_scaling", {{"type", "yarn"}, {"factor", 4}, {"beta_fast", -1}}, "\"beta_fast\" is -1"},
      {"rope_scaling", {{"type", "longrope"}, {"long_factor", {1, 1, 1, 1}}}, "\"short_factor\" is missing"},
      {"rope_scaling",
       {{"type", "longrope"}, {"long_factor", {1, 1, 1}}, {"short_factor", {1, 1, 1, 1}}},
       "\"long_factor\" is not a list of 4 numbers"},
      {"rope_scaling",
       {{"type", "longrope"}, {"long_factor", {1, 1, 1, 0}}, {"short_factor", {1, 1, 1, 1}}},
       "\"long_factor\" holds 0"},
      {"rope_scaling", {{"type", "linear"}}, "needs \"factor\""},
      {"rope_scaling", {{"type", "linear"}, {"factor", 0}}, "\"factor\" is 0"},
      {"rope_scaling", "linear", "not an object"},
      {"rope_scaling", {{"rope_type", "llama3"}}, "needs \"factor\""},
      {"rope_scaling",
       {{"rope_type", "llama3"},
        {"factor", 8},
        {"low_freq_factor", 4},
        {"high_freq_factor", 3},
        {"original_max_position_embeddings", 8}},
       "\"high_freq_factor\" must not be below"},
      {"rope_parameters", {{"full_attention", {{"rope_theta", 1e4}}}}, "by layer type"},
      {"eos_token_id", -1, "\"eos_token_id\" holds -1"},
      {"eos_token_id", 1ull << 31, "\"eos_token_id\" holds 2147483648"},
      {"eos_token_id", {1, "x"}, "\"eos_token_id\" holds \"x\""},
      {"tie_word_embeddings", 1, "\"tie_word_embeddings\" is 1, expected true or false"},
  };
  for (const Case& c : cases) {
    CAPTURE(std::string(c.field));
    CAPTURE(c.value.dump());
    const auto config = parse(with(c.field, c.value));
    REQUIRE_FALSE(config.ok());
    CAPTURE(config.status().message());
    CHECK(contains(config.status().message(), c.message));
  }
}

TEST_CASE("a window is that of the layers that slide; one that no sequence can outgrow is none") {
  const auto windows = [](const nlohmann::json& json) {
    const ModelConfig c = parsed(with("num_hidden_layers", 4, json));
    std::vector<int32_t> out;
    for (int32_t i = 0; i < c.num_hidden_layers; ++i) out.push_back(c.layer(i).window);
    return out;
  };
  using Windows = std::vector<int32_t>;
  const auto mistral = of_type("mistral");
  CHECK(windows(with("sliding_window", nullptr, mistral)) == Windows{0, 0, 0, 0});
  CHECK(windows(with("sliding_window", 512, mistral)) == Windows{0, 0, 0, 0});
  CHECK(windows(with("sliding_window", 511, mistral)) == Windows{511, 511, 511, 511});
  CHECK(windows(with("max_position_embeddings", 8192, mistral)) == Windows{4096, 4096, 4096, 4096});  // the default
  const auto qwen = with("sliding_window", 8, of_type("qwen2"));
  CHECK(windows(qwen) == Windows{0, 0, 0, 0});
  const auto sliding_qwen = with("use_sliding_window", true, qwen);
  CHECK(windows(sliding_qwen) == Windows{0, 0, 0, 0});  // of layers from the 28th on
  CHECK(windows(with("max_window_layers", 3, sliding_qwen)) == Windows{0, 0, 0, 8});
  const nlohmann::json types = {"full_attention", "sliding_attention", "full_attention", "full_attention"};
  CHECK(windows(with("layer_types", types, sliding_qwen)) == Windows{0, 8, 0, 0});
  CHECK(windows(with("sliding_window", 8, of_type("gemma2"))) == Windows{8, 0, 8, 0});
  CHECK(windows(with("sliding_window", 8, with("sliding_window_pattern", 3, of_type("gemma3_text")))) ==
        Windows{8, 8, 0, 8});
  for (const auto& [types_value, message] :
       {std::pair<nlohmann::json, const char*>{{"full_attention"}, "not a list of 2"},
        {{"full_attention", "chunked_attention"}, "\"chunked_attention\""},
        {"full_attention", "not a list of 2"}}) {
    const auto config = parse(with("layer_types", types_value, sliding_qwen));
    REQUIRE_FALSE(config.ok());
    CHECK(contains(config.status().message(), message));
  }
  for (const nlohmann::json& bad : {nlohmann::json(0), nlohmann::json(-1), nlohmann::json("x")})
    CHECK_FALSE(parse(with("sliding_window", bad, mistral)).ok());
}

TEST_CASE("text that is not a small JSON object is refused") {
  for (const std::string& text :
       {std::string(""), std::string("["), std::string("[]"), std::string("null"),
        std::string("{\"rms_norm_eps\": NaN}"), std::string("{\"rope_theta\": 1e999}"), std::string(100000, '['),
        "{\"a\":" + std::string(100000, '['), "{\"a\":" + std::string(100, '[') + std::string(100, ']') + "}",
        std::string("{}\0", 3), std::string("{\"\xff\": 1}"), "{\"a\": \"" + std::string(1 << 20, 'x') + "\"}"}) {
    const auto config = parse_model_config(text);
    REQUIRE_FALSE(config.ok());
    CHECK(config.status().message().size() < 400);
  }
}

TEST_CASE("every single-byte change of a config is refused or yields one in range") {
  const std::string good = good_config().dump();
  for (size_t at = 0; at < good.size(); ++at)
    for (const char c : {'0', '9', '-', 'e', '.', '"', '{', ']', ' ', '\0', '\xff'}) {
      std::string bad = good;
      bad[at] = c;
      const auto config = parse_model_config(bad);
      if (!config.ok()) continue;
      CHECK(config->num_attention_heads % config->num_key_value_heads == 0);
      CHECK((config->head_dim >= 2 && config->head_dim % 2 == 0));
      CHECK((config->hidden_size >= 1 && config->num_hidden_layers >= 1 && config->vocab_size >= 1));
    }
}

TEST_CASE("generation_config.json: all optional, ranges checked, merged end-of-sequence tokens") {
  const TempDir dir;
  const auto none = load_generation_config(dir.path());
  REQUIRE(none.ok());
  CHECK_FALSE(none->temperature.has_value());
  write_file(dir / "generation_config.json",
             R"({"eos_token_id":[5,6],"do_sample":true,"temperature":0.6,"top_p":0.9,"top_k":50,"min_p":0.05,
                 "repetition_penalty":1.1,"max_new_tokens":64,"transformers_version":"4.45"})");
  const auto all = load_generation_config(dir.path());
  REQUIRE_MESSAGE(all.ok(), all.status().message());
  CHECK(all->do_sample == true);
  CHECK(all->temperature == 0.6f);
  CHECK(all->top_p == 0.9f);
  CHECK(all->top_k == 50);
  CHECK(all->min_p == 0.05f);
  CHECK(all->repetition_penalty == 1.1f);
  CHECK(all->max_new_tokens == 64);
  const ModelConfig model = parsed(with("eos_token_id", 7));
  CHECK(merge_eos_token_ids(model, *all) == std::vector<TokenId>{5, 6});
  CHECK(merge_eos_token_ids(model, *none) == std::vector<TokenId>{7});
  // A token that the model does not have ends nothing, and min_tokens must not forbid it.
  const TokenId vocab = model.vocab_size;
  CHECK(merge_eos_token_ids(parsed(with("eos_token_id", {vocab, 7, vocab - 1, INT32_MAX})), *none) ==
        std::vector<TokenId>{7, vocab - 1});
  for (const char* bad : {R"({"temperature":-1})", R"({"top_p":0})", R"({"top_p":1.5})", R"({"top_k":-1})",
                          R"({"repetition_penalty":0})", R"({"max_new_tokens":0})", R"({"eos_token_id":"x"})", "7"}) {
    CAPTURE(std::string(bad));
    CHECK_FALSE(parse_generation_config(bad).ok());
  }
}

TEST_CASE("the published shapes and the bundled model load") {
  for (const char* name : {"smollm2-135m", "qwen2.5-0.5b", "llama-3.2-1b", "llama-3.1-8b"}) {
    CAPTURE(std::string(name));
    const auto config = load_model_config(source_dir() + "/data/shapes/" + name);
    REQUIRE_MESSAGE(config.ok(), config.status().message());
    CHECK(config->dtype == DType::kBF16);
  }
  CHECK(load_model_config(source_dir() + "/data/shapes/qwen2.5-0.5b")->qkv_bias);
  CHECK(load_model_config(source_dir() + "/data/shapes/llama-3.2-1b")->ropes[0].scaling.kind ==
        RopeScalingKind::kLlama3);
  CHECK(load_model_config(source_dir() + "/data/model").ok());
  CHECK(load_generation_config(source_dir() + "/data/model")->eos_token_ids.size() == 2);
  CHECK(load_model_config("/nonexistent").status().code() == StatusCode::kNotFound);
}

TEST_CASE(
    "rope table: position 0 is the identity, the first channel turns one radian a position, linear scaling slows it") {
  ModelConfig config = tiny_config();
  const RopeTable table = make_rope_table(config.ropes[0], config.head_dim, 5);
  const int half = config.head_dim / 2;
  REQUIRE(table.cos.size() == static_cast<size_t>(5 * half));
  for (int i = 0; i < half; ++i) {
    CHECK(table.cos[i] == 1.0f);
    CHECK(table.sin[i] == 0.0f);
  }
  CHECK(table.sin[4 * half] == static_cast<float>(std::sin(4.0)));
  config.ropes[0].scaling.kind = RopeScalingKind::kLinear;
  config.ropes[0].scaling.factor = 4;
  CHECK(make_rope_table(config.ropes[0], config.head_dim, 5).sin[4 * half] == static_cast<float>(std::sin(1.0)));
}

TEST_CASE("ALiBi slopes of a number of heads that is no power of two: Bloom's way and MPT's") {
  using Slopes = std::vector<float>;
  CHECK(bloom_alibi_slopes(4, 1) == Slopes{0.25f, 0.0625f, 0.015625f, 0.00390625f});
  CHECK(bloom_alibi_slopes(6, 1) == Slopes{0.25f, 0.0625f, 0.015625f, 0.00390625f, 0.5f, 0.125f});
  CHECK(mpt_alibi_slopes(4, 8) == Slopes{0.25f, 0.0625f, 0.015625f, 0.00390625f});
  CHECK(mpt_alibi_slopes(3, 8) == Slopes{0.0625f, 0.00390625f, 0.25f});
  CHECK(bloom_alibi_slopes(1, 2) == Slopes{2 * 0.00390625f});
}

TEST_CASE("the list of architectures is in order, and each is found by its name") {
  std::string last;
  for (const Architecture& a : architectures()) {
    CHECK(a.model_type > last);
    last = a.model_type;
    CHECK(find_architecture(a.model_type) == &a);
  }
  CHECK(architectures().size() == 77);
  CHECK(find_architecture("") == nullptr);
}

TEST_CASE("sizes that are in range one by one but not together are refused") {
  const auto config = parse_model_config(
      R"({"model_type": "mixtral", "vocab_size": 16777216, "hidden_size": 262144, "intermediate_size": 1048576,
          "num_hidden_layers": 1024, "num_attention_heads": 4096, "num_key_value_heads": 4096, "head_dim": 1024,
          "num_local_experts": 4096})");
  REQUIRE_FALSE(config.ok());
  CHECK(config.status().message().find("billion parameters") != std::string::npos);
}

// The sizes of Gemma 4 E2B.
nlohmann::json gemma4() {
  nlohmann::json types;
  for (int i = 1; i <= 35; ++i) types.push_back(i % 5 == 0 ? "full_attention" : "sliding_attention");
  return {{"model_type", "gemma4_text"}, {"hidden_size", 1536},          {"intermediate_size", 6144},
          {"num_hidden_layers", 35},     {"num_key_value_heads", 1},     {"num_global_key_value_heads", nullptr},
          {"global_head_dim", 512},      {"num_kv_shared_layers", 20},   {"use_double_wide_mlp", true},
          {"layer_types", types},        {"final_logit_softcapping", 30}};
}

TEST_CASE("Gemma 4: heads by type of layer, keys and values of earlier layers, inputs of layers, two kinds of ropes") {
  const auto config = parse_model_config(gemma4().dump());
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  const ModelConfig& c = *config;
  CHECK((c.head_dim_of(0) == 256 && c.head_dim_of(4) == 512 && c.num_kv_heads_of(4) == 1));
  CHECK((c.layer(0).window == 512 && c.layer(4).window == 0));
  CHECK((c.kv_layer_of(14) == 14 && c.kv_layer_of(15) == 13 && c.kv_layer_of(19) == 14 && c.kv_layer_of(34) == 14));
  CHECK((c.intermediate_size_of(14) == 6144 && c.intermediate_size_of(15) == 12288));
  CHECK((c.hidden_size_per_layer_input == 256 && c.vocab_size_per_layer_input == 262144 && c.logit_softcap == 30));
  CHECK((c.ropes[0].scaling.rotated_share == 0.25 && c.rotary_dim(c.ropes[0]) == 512 && c.ropes[0].theta == 1e6));
  CHECK((c.rotary_dim(c.ropes[1]) == 256 && c.ropes[1].theta == 1e4 && c.score_scale(3) == 1));
  // As transformers writes it, and as the file names it where keys are not values.
  nlohmann::json other = gemma4();
  other["num_global_key_value_heads"] = 4;
  CHECK(parse_model_config(other.dump())->num_kv_heads_of(4) == 1);
  other.erase("global_head_dim");
  for (int i = 4; i < 35; i += 5)
    other["per_layer_config"][i < 10 ? "0" + std::to_string(i) : std::to_string(i)] = {{"head_dim", 128}};
  CHECK(parse_model_config(other.dump())->head_dim_of(4) == 128);
  const auto refused = [](const char* field, const nlohmann::json& value, const char* message) {
    nlohmann::json json = gemma4();
    json[field] = value;
    const auto bad = parse_model_config(json.dump());
    REQUIRE_FALSE(bad.ok());
    CAPTURE(bad.status().message());
    CHECK(bad.status().message().find(message) != std::string::npos);
  };
  refused("enable_moe_block", true, "num_experts");
  refused("use_bidirectional_attention", "all", "use_bidirectional_attention");
  refused("num_kv_shared_layers", 35, "num_kv_shared_layers");
  refused("num_kv_shared_layers", 34, "leaves no layer whose keys and values layer 4 could use");
  refused("vocab_size_per_layer_input", 1000, "vocab_size_per_layer_input");
  refused("global_head_dim", 33, "layer 4: head_dim 33 is odd");
  refused("per_layer_config", {{"4", {{"head_dim", 128}}}}, "layer 9: its heads differ from those of layer 4");
  refused("per_layer_config", {{"35", {{"head_dim", 128}}}}, "there is no layer \"35\"");
  refused("per_layer_config", {{"4", {{"skip", {"mlp"}}}}}, "\"skip\"");
  refused("rope_parameters", {{"full_attention", 1}}, "full_attention");
}

}  // namespace
}  // namespace llmb::test
