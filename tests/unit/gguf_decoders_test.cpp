// Single architectures in GGUF files, beyond the golden models of gguf_model_test: spellings of older and newer
// converters, and what is refused by name.
#include <doctest/doctest.h>

#include <functional>
#include <optional>

#include "model/config_loader.h"
#include "model/gguf_model.h"
#include "model/lora_adapter.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/process.h"
#include "tests/support/raw_safetensors.h"
#include "tests/support/source_dir.h"
#include "tests/support/temp_dir.h"

namespace llmb::test {
namespace {

using Change = std::function<void(GgufWriter&)>;

// Sizes that all have: 2 heads of 8 channels, 1 KV head, 4 layers.
GgufWriter model_of(const std::string& architecture, const Change& change = {}) {
  GgufWriter w;
  w.text("general.architecture", architecture);
  for (const auto& [key, value] : {std::pair("context_length", 64),
                                   {"embedding_length", 16},
                                   {"block_count", 4},
                                   {"feed_forward_length", 32},
                                   {"attention.head_count", 2},
                                   {"attention.head_count_kv", 1}})
    w.u32(architecture + "." + key, static_cast<uint32_t>(value));
  w.f32(architecture + ".attention.layer_norm_rms_epsilon", 1e-5f);
  if (change) change(w);
  w.f32_tensor("token_embd.weight", {16, 16}, std::vector<float>(256, 0.5f));
  return w;
}

Result<ModelConfig> config_of(const GgufWriter& writer) {
  const TempDir dir;
  write_file(dir / "m.gguf", writer.bytes());
  return load_model_config(dir / "m.gguf");
}

ModelConfig good(const std::string& architecture, const Change& change = {}) {
  const auto config = config_of(model_of(architecture, change));
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  return *config;
}

void refused(const std::string& architecture, const Change& change, const char* part) {
  const auto config = config_of(model_of(architecture, change));
  REQUIRE(!config.ok());
  CHECK_MESSAGE(config.status().message().find(part) != std::string::npos, config.status().message());
  CHECK(config.status().message().find('\n') == std::string::npos);
}

void bools(GgufWriter& w, const std::string& key, const std::vector<bool>& values) {
  std::string bytes = GgufWriter::raw(uint32_t{7}) + GgufWriter::raw(static_cast<uint64_t>(values.size()));
  for (const bool value : values) bytes += static_cast<char>(value);
  w.entry(key, 9, bytes);
}

std::vector<int32_t> windows_of(const ModelConfig& config) {
  std::vector<int32_t> windows;
  for (int32_t i = 0; i < config.num_hidden_layers; ++i) windows.push_back(config.layer(i).window);
  return windows;
}

// A source over one file's bytes, with a config made by hand.
struct Source {
  Source(const GgufWriter& writer, ModelConfig made, WeightForm form = WeightForm::kNumbers)
      : bytes(writer.bytes()),
        file(GgufFile::parse({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()})),
        config(std::move(made)),
        pool(1) {
    REQUIRE(file.ok());
    source.emplace(*file, config, pool, WeightAccess::kValues, form);
  }
  std::vector<float> floats(const std::string& name, const std::vector<int64_t>& shape) {
    const auto view = source->tensor(name, shape);
    REQUIRE_MESSAGE(view.ok(), view.status().message());
    REQUIRE(view->dtype == DType::kF32);
    const auto* data = static_cast<const float*>(view->data);
    return {data, data + view->rows * view->cols};
  }
  std::string message(const std::string& name, const std::vector<int64_t>& shape) {
    return source->tensor(name, shape).status().message();
  }

  std::string bytes;
  Result<GgufFile> file;
  ModelConfig config;
  ThreadPool pool;
  std::optional<GgufSource> source;
};

ModelConfig heads_of_8() {
  ModelConfig config;
  config.num_attention_heads = 2, config.num_key_value_heads = 1, config.head_dim = 8;
  return config;
}

std::vector<float> counted(int64_t rows, int64_t cols) {  // each row is all its number
  std::vector<float> values;
  for (int64_t i = 0; i < rows * cols; ++i) values.push_back(static_cast<float>(i / cols));
  return values;
}

const std::string kLayer = "model.layers.0.self_attn.";

}  // namespace

TEST_CASE("heads are as wide as the embedding has room for, where the file does not say, and partly rotated") {
  const ModelConfig glm = good("chatglm", [](GgufWriter& w) { w.u32("chatglm.rope.dimension_count", 4); });
  CHECK(glm.head_dim == 8);
  CHECK(glm.ropes[0].rotary_dim == 4);
  for (const char* architecture : {"stablelm", "phi2", "nemotron", "glm4"}) CHECK(good(architecture).ropes[0].rotary_dim == 8);
}

TEST_CASE("windows layer by layer, or every so many layers; without a window there are none") {
  const auto list = [](GgufWriter& w) {
    w.u32("exaone4.attention.sliding_window", 7);
    bools(w, "exaone4.attention.sliding_window_pattern", {true, false, false, true});
  };
  const ModelConfig listed = good("exaone4", list);
  CHECK(windows_of(listed) == std::vector<int32_t>{7, 0, 0, 7});
  CHECK(listed.layer(0).rope == 0);
  CHECK(listed.layer(1).rope == -1);
  const ModelConfig none = good("exaone4");
  CHECK(windows_of(none) == std::vector<int32_t>{0, 0, 0, 0});
  CHECK(none.layer(0).rope == 0);
  const ModelConfig every = good("cohere2", [](GgufWriter& w) {
    w.u32("cohere2.attention.sliding_window", 7);
    w.u32("cohere2.attention.sliding_window_pattern", 2);
  });
  CHECK(windows_of(every) == std::vector<int32_t>{7, 0, 7, 0});
  refused("cohere2", {}, "\"attention.sliding_window\" is missing");
  refused(
      "exaone4",
      [](GgufWriter& w) {
        w.u32("exaone4.attention.sliding_window", 7);
        bools(w, "exaone4.attention.sliding_window_pattern", {true});
      },
      "does not name a kind for each layer");
  refused(
      "olmo2",
      [](GgufWriter& w) {
        w.u32("olmo2.attention.sliding_window", 7);
        w.u32("olmo2.attention.sliding_window_pattern", 0);
      },
      "\"attention.sliding_window_pattern\" is out of range");
  refused(
      "exaone4", [](GgufWriter& w) { w.entry("exaone4.attention.sliding_window", 11, GgufWriter::raw(int64_t{-3})); },
      "sliding_window");
}

TEST_CASE("OLMo 3 is OLMo 2 with windows; its rope is scaled where there is none") {
  CHECK(good("olmo2").model_type == "olmo2");
  const ModelConfig config = good("olmo2", [](GgufWriter& w) {
    w.u32("olmo2.attention.sliding_window", 7);
    w.text("olmo2.rope.scaling.type", "yarn");
    w.f32("olmo2.rope.scaling.factor", 8);
    w.u32("olmo2.rope.scaling.original_context_length", 8);
    w.f32("olmo2.rope.scaling.yarn_attn_factor", 1.5f);
    w.f32("olmo2.rope.scaling.yarn_beta_fast", 30);
    w.f32("olmo2.rope.freq_base_swa", 5000);
  });
  CHECK(config.model_type == "olmo3");
  CHECK(windows_of(config) == std::vector<int32_t>{7, 7, 7, 0});
  REQUIRE(config.ropes.size() == 2);
  CHECK(config.ropes[0].scaling.kind == RopeScalingKind::kYarn);
  CHECK(config.ropes[0].scaling.attention_factor == 1.5);
  CHECK(config.ropes[0].scaling.beta_fast == 30);
  CHECK(config.ropes[1].scaling.kind == RopeScalingKind::kNone);
  CHECK(config.ropes[1].theta == 5000);
}

TEST_CASE("Ministral 3 is used up to where its queries begin to grow") {
  const auto grows = [](GgufWriter& w) {
    w.f32("mistral3.attention.temperature_scale", 0.1f);
    w.u32("mistral3.rope.scaling.original_context_length", 16);
  };
  CHECK(good("mistral3", grows).max_position_embeddings == 16);
  CHECK(good("mistral3").max_position_embeddings == 64);
  CHECK(windows_of(good("mistral3")) == std::vector<int32_t>{0, 0, 0, 0});
  refused(
      "mistral3", [](GgufWriter& w) { w.f32("mistral3.attention.temperature_scale", 0.1f); },
      "needs a \"rope.scaling.original_context_length\"");
}

TEST_CASE("layers that predict further tokens are none of the model's") {
  CHECK(good("exaone4", [](GgufWriter& w) { w.u32("exaone4.nextn_predict_layers", 1); }).num_hidden_layers == 3);
  for (const uint32_t all : {4u, 5000u})
    refused(
        "glm4", [=](GgufWriter& w) { w.u32("glm4.nextn_predict_layers", all); },
        "\"nextn_predict_layers\" is out of range");
}

TEST_CASE("mixtures: what a file says of them that is not computed is refused by name") {
  const auto experts = [](const std::string& architecture, const Change& more) {
    return [=](GgufWriter& w) {
      w.u32(architecture + ".expert_count", 4);
      w.u32(architecture + ".expert_used_count", 2);
      more(w);
    };
  };
  refused("hunyuan-moe", experts("hunyuan-moe", [](GgufWriter& w) { w.u32("hunyuan-moe.expert_feed_forward_length", 8); }),
          "\"expert_feed_forward_length\" other than \"feed_forward_length\"");
  refused("llama4", experts("llama4", [](GgufWriter& w) {
            w.u32("llama4.expert_feed_forward_length", 8);
            w.u32("llama4.attention.sliding_window", 0);
          }),
          "\"attention.sliding_window\" other than 8192");
  refused("stablelm", experts("stablelm", [](GgufWriter&) {}), "experts");
  const auto scout = experts("llama4", [](GgufWriter& w) { w.u32("llama4.expert_feed_forward_length", 8); });
  CHECK(good("llama4", scout).experts.intermediate_size == 8);
  CHECK(good("llama4", scout).intermediate_size == 32);
  CHECK(good("llama4", scout).qk_norm == QkNorm::kWeightless);
}

TEST_CASE("Llama 4's frequencies are kept or stretched, with nothing between") {
  const ModelConfig config = good("internlm2", [](GgufWriter& w) {
    w.u32("internlm2.rope.dimension_count", 8);
    w.f32("internlm2.rope.freq_base", 500000);
    w.f32_tensor("rope_freqs.weight", {4}, {1, 1, 1, 16});  // the third turns 1.8 times in 8192 positions
  });
  CHECK(config.ropes[0].scaling.kind == RopeScalingKind::kLlama3);
  CHECK(config.ropes[0].scaling.high_freq_factor == 1);
}

TEST_CASE("q, k and v in one tensor, and gate and up of all experts, are found there, also as blocks") {
  GgufWriter w = model_of("internlm2", [](GgufWriter& writer) {
    writer.f32_tensor("blk.0.attn_qkv.weight", {32, 16}, counted(32, 16));
    writer.f32_tensor("blk.0.attn_qkv.bias", {32}, counted(32, 1));
    writer.f32_tensor("blk.0.ffn_gate_up_exps.weight", {2, 8, 16}, counted(16, 16));
  });
  ModelConfig config = heads_of_8();
  config.experts.intermediate_size = 4;
  Source s(w, config);
  const auto firsts = [&](const std::string& name, int64_t rows, int64_t cols) {
    const std::vector<float> values = s.floats(name, {rows, cols});
    std::vector<float> column;
    for (int64_t row = 0; row < rows; ++row) column.push_back(values[row * cols]);
    return column;
  };
  const std::vector<float> q = {0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15};
  CHECK(firsts(kLayer + "q_proj.weight", 16, 16) == q);
  CHECK(s.floats(kLayer + "q_proj.bias", {16}) == q);
  CHECK(firsts(kLayer + "k_proj.weight", 8, 16) == std::vector<float>{16, 18, 20, 22, 17, 19, 21, 23});
  CHECK(s.floats(kLayer + "v_proj.bias", {8}) == std::vector<float>{24, 25, 26, 27, 28, 29, 30, 31});
  CHECK(firsts("model.layers.0.mlp.experts.1.gate_proj.weight", 4, 16) == std::vector<float>{8, 9, 10, 11});
  CHECK(firsts("model.layers.0.mlp.experts.1.up_proj.weight", 4, 16) == std::vector<float>{12, 13, 14, 15});
  CHECK(s.source->has(kLayer + "v_proj.weight"));
  CHECK_FALSE(s.source->has("model.layers.1.self_attn.v_proj.weight"));
  s.config.num_key_value_heads = 2;
  CHECK(s.message(kLayer + "q_proj.weight", {16, 16}).find(
            "tensor \"blk.0.attn_qkv.weight\" has shape [32, 16], expected [48, 16]") != std::string::npos);
  std::string blocks;  // of Q8_0: a scale of 1, then 32 times the row's number
  for (int row = 0; row < 32; ++row) blocks += std::string("\x00\x3c", 2) + std::string(32, static_cast<char>(row));
  GgufWriter packed = model_of("internlm2", [&](GgufWriter& p) { p.tensor("blk.0.attn_qkv.weight", {32, 32}, 8, blocks); });
  Source t(packed, heads_of_8(), WeightForm::kBlocks);
  for (const auto& [part, second] : {std::pair("q", 2), {"k", 18}, {"v", 25}}) {
    const int64_t rows = std::string(part) == "q" ? 16 : 8;
    const auto view = t.source->tensor(kLayer + part + "_proj.weight", std::vector<int64_t>{rows, 32});
    REQUIRE_MESSAGE(view.ok(), view.status().message());
    CHECK(view->blocks != BlockFormat::kNone);
    CHECK(static_cast<const uint8_t*>(view->data)[34 + 2] == second);
  }
}

TEST_CASE("of heads that are partly rotated only that part changes places, of norms of heads too") {
  GgufWriter w = model_of("command-r", [](GgufWriter& writer) {
    writer.f32_tensor("blk.0.attn_q.weight", {16, 16}, counted(16, 16));
    writer.f32_tensor("blk.0.attn_q_norm.weight", {2, 8}, counted(16, 1));
  });
  ModelConfig config = heads_of_8();
  config.ropes[0].rotary_dim = 4;
  Source s(w, config);
  const std::vector<float> rows = {0, 2, 1, 3, 4, 5, 6, 7, 8, 10, 9, 11, 12, 13, 14, 15};
  const std::vector<float> values = s.floats(kLayer + "q_proj.weight", {16, 16});
  for (size_t row = 0; row < 16; ++row) CHECK(values[row * 16] == rows[row]);
  CHECK(s.floats(kLayer + "q_norm.weight", {2, 8}) == rows);
}

TEST_CASE("norms of heads are rows of one tensor; of a block's type they are refused") {
  GgufWriter w = model_of("stablelm", [](GgufWriter& writer) {
    writer.f32_tensor("blk.0.attn_q_norm.weight", {2, 8}, counted(2, 8));
  });
  Source s(w, heads_of_8());
  CHECK(s.floats(kLayer + "q_layernorm.norms.1.weight", {8}) == std::vector<float>(8, 1));
  CHECK(s.message(kLayer + "q_layernorm.norms.2.weight", {8}).find("has shape [2, 8]") != std::string::npos);
  GgufWriter blocks = model_of("command-r", [](GgufWriter& writer) {
    writer.tensor("blk.0.attn_q_norm.weight", {2, 32}, 8, std::string(68, '\0'));
  });
  Source t(blocks, heads_of_8());
  CHECK(t.message(kLayer + "q_norm.weight", {2, 32}).find("is a norm of type Q8_0, which is not supported") !=
        std::string::npos);
}

TEST_CASE("a GGUF adapter's rows are in the order of the model's checkpoint, where that has pairs beside each other") {
  const ModelConfig config = load_model_config(source_dir() + "/data/fixtures/models/cohere").value();
  const std::vector<float> a = counted(2, 32), b = counted(32, 2);
  const TempDir dir;
  GgufWriter w;
  w.text("general.architecture", "command-r");
  w.text("general.type", "adapter");
  w.text("adapter.type", "lora");
  w.f32("adapter.lora.alpha", 4);
  w.f32_tensor("blk.0.attn_q.weight.lora_a", {2, 32}, a);
  w.f32_tensor("blk.0.attn_q.weight.lora_b", {32, 2}, b);
  write_file(dir / "a.gguf", w.bytes());
  const std::string q = "base_model.model.model.layers.0.self_attn.q_proj.lora_";
  write_file(dir / "adapter_config.json", R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]})");
  write_file(dir / "adapter_model.safetensors", raw_safetensors({{q + "A.weight", "F32", {2, 32}, bytes_of(a)},
                                                                 {q + "B.weight", "F32", {32, 2}, bytes_of(b)}}));
  const auto gguf = LoraAdapter::open(dir / "a.gguf", config), peft = LoraAdapter::open(dir.path(), config);
  REQUIRE_MESSAGE(gguf.ok(), gguf.status().message());
  REQUIRE_MESSAGE(peft.ok(), peft.status().message());
  const auto found = gguf->modules(0, Projection::kQkv), expected = peft->modules(0, Projection::kQkv);
  REQUIRE((found.size() == 1 && expected.size() == 1));
  for (int64_t column = 0; column < 32; ++column)
    CHECK(found[0].row_of_column(column) == expected[0].row_of_column(column));
  CHECK(found[0].row_of_column(1) == 2);
}

TEST_CASE("GLM-4V has q and k in the order of halves") {
  const auto interleaved = [](const GgufWriter& writer) {
    const std::string bytes = writer.bytes();
    const auto file = GgufFile::parse({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
    REQUIRE(file.ok());
    return gguf_architecture(*file)->is_rope_interleaved;
  };
  CHECK(interleaved(model_of("glm4")));
  const auto sections = [](std::vector<int32_t> parts) {
    return [parts](GgufWriter& w) { w.ints("glm4.rope.dimension_sections", parts); };
  };
  CHECK_FALSE(interleaved(model_of("glm4", sections({8, 12, 12, 0}))));
  CHECK(interleaved(model_of("glm4", sections({0, 0, 0, 0}))));
  CHECK(interleaved(model_of("glm4", sections({8}))));
}

TEST_CASE("DeepSeek's attention without experts is Youtu's; a bias tells how experts are chosen") {
  const auto latent = [](const Change& more) {
    return [=](GgufWriter& w) {
      for (const auto& [key, value] : {std::pair("attention.key_length_mla", 12), {"attention.value_length_mla", 8},
                                       {"attention.kv_lora_rank", 16}, {"rope.dimension_count", 4}})
        w.u32(std::string("deepseek2.") + key, static_cast<uint32_t>(value));
      more(w);
    };
  };
  CHECK(good("deepseek2", latent([](GgufWriter&) {})).model_type == "youtu");
  const auto experts = [](GgufWriter& w) {
    w.u32("deepseek2.expert_count", 4);
    w.u32("deepseek2.expert_used_count", 2);
    w.u32("deepseek2.expert_feed_forward_length", 8);
    w.u32("deepseek2.leading_dense_block_count", 1);
    w.u32("deepseek2.nextn_predict_layers", 1);
  };
  CHECK(good("deepseek2", latent(experts)).model_type == "deepseek_v2");
  const ModelConfig lite = good("deepseek2", latent([&](GgufWriter& w) {
                                  experts(w);
                                  w.f32_tensor("blk.1.exp_probs_b.bias", {4}, {0, 0, 0, 0});
                                }));
  CHECK(lite.model_type == "deepseek_v3");
  CHECK(lite.num_hidden_layers == 3);
  refused("deepseek2", latent([](GgufWriter& w) { w.f32("deepseek2.attention.temperature_scale", 0.1f); }),
          "temperature_scale");
}

}  // namespace llmb::test
