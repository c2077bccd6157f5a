// GGUF files as models: every block format against the gguf package, whole models against Hugging Face transformers on
// the dequantised weights (tools/golden/make_golden_gguf.py), and what is refused.
#include "model/gguf_model.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <filesystem>

#include "backend/cpu/cpu_backend.h"
#include "base/float_formats.h"
#include "model/gguf_dequantise.h"
#include "model/weight_files.h"
#include "tests/support/compare.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/golden.h"
#include "tests/support/oracle.h"
#include "tests/support/plan_builder.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/golden_answers.h"

namespace llmb::test {
namespace {

namespace fs = std::filesystem;

std::string fixture(const std::string& name) { return source_dir() + "/data/fixtures/gguf/" + name; }

// A llama with one layer that says everything it has to.
GgufWriter tiny_llama(const std::string& architecture = "llama") {
  GgufWriter w;
  w.text("general.architecture", architecture);
  for (const auto& [key, value] : {std::pair("context_length", 64),
                                   {"embedding_length", 8},
                                   {"block_count", 1},
                                   {"feed_forward_length", 16},
                                   {"attention.head_count", 2},
                                   {"attention.head_count_kv", 1},
                                   {"rope.dimension_count", 4}})
    w.u32(architecture + "." + key, static_cast<uint32_t>(value));
  w.f32(architecture + ".attention.layer_norm_rms_epsilon", 1e-5f);
  return w;
}

void add_embedding(GgufWriter* w, int64_t vocab = 16) {
  w->f32_tensor("token_embd.weight", {vocab, 8}, std::vector<float>(vocab * 8, 0.5f));
}

Result<ModelConfig> config_of(const GgufWriter& writer) {
  const TempDir dir;
  write_file(dir / "m.gguf", writer.bytes());
  return load_model_config(dir / "m.gguf");
}

TEST_CASE("every block format is what the gguf package makes of it, to the bit") {
  const auto file = GgufFile::open(fixture("blocks.gguf"));
  REQUIRE_MESSAGE(file.ok(), file.status().message());
  int num_types = 0;
  for (const GgufTensor& tensor : file->tensors()) {
    const GgufTensor* expected = file->tensor(std::string(tensor.name) + ".expected");
    if (expected == nullptr) continue;
    CAPTURE(std::string(tensor.name));
    REQUIRE(std::string_view(tensor.type->name) == tensor.name);
    REQUIRE(can_dequantise(*tensor.type));
    REQUIRE(tensor.shape == expected->shape);
    ++num_types;
    const int64_t rows = tensor.shape[0], cols = tensor.shape[1];
    std::vector<float> values(rows * cols);
    for (int64_t row = 0; row < rows; ++row)
      dequantise_row(*tensor.type, tensor.data.data() + row * (tensor.data.size() / rows), cols,
                     values.data() + row * cols);
    CHECK(std::memcmp(values.data(), expected->data.data(), values.size() * 4) == 0);
  }
  CHECK(num_types == 16);
}

TEST_CASE("models answer as transformers does with the dequantised weights") {
  int num_models = 0;
  for (const auto& entry : fs::directory_iterator(fixture(""))) {
    const std::string path = entry.path().string();
    const std::string golden = path.substr(0, path.size() - 5) + ".golden.jsonl";
    if (!path.ends_with(".gguf") || !fs::exists(golden)) continue;
    CAPTURE(path);
    ++num_models;
    const auto lines = read_json_lines(golden);
    const auto actual = golden_answers(path, lines);
    for (size_t i = 0; i < lines.size(); ++i) {
      CHECK(actual[i].tokens == lines[i].at("token_ids").get<std::vector<TokenId>>());
      CHECK(compare(actual[i].logprobs, lines[i].at("logprobs").get<std::vector<double>>(), 0, 3e-5) == "");
    }
  }
  CHECK(num_models >= 59);
}

TEST_CASE("a model in several files answers as transformers does, whichever of them is named") {
  const auto lines = read_json_lines(fixture("split.golden.jsonl"));
  for (const char* name : {"split-00001-of-00003.gguf", "split-00003-of-00003.gguf"}) {
    const auto actual = golden_answers(fixture(name), lines);
    for (size_t i = 0; i < lines.size(); ++i)
      CHECK(actual[i].tokens == lines[i].at("token_ids").get<std::vector<TokenId>>());
  }
}

TEST_CASE("MXFP4 becomes bfloat16, which holds each of its numbers, of matrices of experts too") {
  GgufWriter w = tiny_llama("gpt-oss");
  std::string blocks;
  for (int i = 0; i < 8; ++i) {
    const int exponent = std::array{0, 1, 2, 100, 127, 128, 200, 254}[i];
    blocks += static_cast<char>(exponent);
    for (int code = 0; code < 16; ++code) blocks += static_cast<char>(code | (15 - code) << 4);
  }
  w.tensor("blk.0.ffn_down_exps.weight", {2, 4, 32}, 39, blocks);
  const std::string bytes = w.bytes();
  const auto file = GgufFile::parse({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
  REQUIRE(file.ok());
  ModelConfig config;
  ThreadPool pool(1);
  GgufSource source(*file, config, pool);
  const GgufTensor& stored = file->tensors()[0];
  for (int expert = 0; expert < 2; ++expert) {
    const auto view = source.tensor("model.layers.0.mlp.experts." + std::to_string(expert) + ".down_proj.weight",
                                    std::array<int64_t, 2>{4, 32});
    REQUIRE_MESSAGE(view.ok(), view.status().message());
    REQUIRE(view->dtype == DType::kBF16);
    for (int row = 0; row < 4; ++row) {
      std::vector<float> expected(32);
      dequantise_row(*stored.type, stored.data.data() + (expert * 4 + row) * 17, 32, expected.data());
      for (int i = 0; i < 32; ++i)
        CHECK(bf16_to_f32(static_cast<const uint16_t*>(view->data)[row * 32 + i]) == expected[i]);
    }
  }
}

TEST_CASE("version 2 is read as version 3 is") {
  const TempDir dir;
  std::string bytes = read_file(fixture("llama-f32.gguf"));
  bytes[4] = 2;
  write_file(dir / "v2.gguf", bytes);
  const auto lines = read_json_lines(fixture("llama-f32.golden.jsonl"));
  CHECK(golden_answers(dir / "v2.gguf", lines)[0].tokens == lines[0].at("token_ids").get<std::vector<TokenId>>());
}

TEST_CASE("values become a config") {
  GgufWriter w = tiny_llama();
  w.f32("llama.rope.freq_base", 500000.0f);
  w.u32("tokenizer.ggml.bos_token_id", 1);
  w.u32("tokenizer.ggml.eos_token_id", 2);
  add_embedding(&w);
  const auto config = config_of(w);
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  CHECK(config->model_type == "llama");
  CHECK(config->vocab_size == 16);
  CHECK(config->hidden_size == 8);
  CHECK(config->num_hidden_layers == 1);
  CHECK(config->intermediate_size == 16);
  CHECK(config->num_attention_heads == 2);
  CHECK(config->num_key_value_heads == 1);
  CHECK(config->head_dim == 4);
  CHECK(config->max_position_embeddings == 64);
  CHECK(config->ropes[0].theta == 500000.0);
  CHECK(config->tie_word_embeddings);
  CHECK(config->eos_token_ids == std::vector<TokenId>{2});
  CHECK(config->dtype == DType::kF32);
  w.f32_tensor("output.weight", {16, 8}, std::vector<float>(128));
  CHECK_FALSE(config_of(w)->tie_word_embeddings);
  w.text("llama.rope.scaling.type", "linear");
  w.f32("llama.rope.scaling.factor", 2.0f);
  CHECK(config_of(w)->ropes[0].scaling.kind == RopeScalingKind::kLinear);
  CHECK(config_of(w)->ropes[0].scaling.factor == 2.0);
}

TEST_CASE("the dtype of a model: as it is stored, or what its blocks become") {
  const auto f16 = load_model_config(fixture("llama-f16.gguf")), blocks = load_model_config(fixture("llama-k.gguf"));
  REQUIRE(f16.ok());
  REQUIRE(blocks.ok());
  CHECK(f16->gpu_dtype() == f16->dtype);
  CHECK(f16->dtype != DType::kF32);
  CHECK_FALSE(f16->is_dequantised);
  CHECK(blocks->is_dequantised);
  CHECK(blocks->dtype == DType::kF32);
  CHECK(blocks->gpu_dtype() == DType::kBF16);
}

TEST_CASE("stored frequency factors are Llama 3.1's, or refused") {
  const auto config = load_model_config(fixture("llama-f32.gguf"));
  REQUIRE(config.ok());
  CHECK(config->ropes[0].scaling.kind == RopeScalingKind::kLlama3);
  CHECK(config->ropes[0].scaling.factor == 8.0);
  for (const std::vector<float>& factors :
       {std::vector<float>{1, 1}, {1, 2}, {0, 0}, {NAN, 8}, {1, -8}, {1}, {1, 1, 1}}) {
    GgufWriter w = tiny_llama();
    w.f32_tensor("rope_freqs.weight", {static_cast<int64_t>(factors.size())}, factors);
    add_embedding(&w);
    const auto made = config_of(w);
    const bool is_none = factors == std::vector<float>{1, 1};
    CHECK(made.ok() == is_none);
    if (made.ok()) CHECK(made->ropes[0].scaling.kind == RopeScalingKind::kNone);
  }
}

TEST_CASE("tokens that end a turn come from the values, and from the vocabulary where these do not say") {
  GgufWriter w = tiny_llama();
  w.u32("tokenizer.ggml.eos_token_id", 1);
  w.u32("tokenizer.ggml.eot_token_id", 4);
  w.texts("tokenizer.ggml.tokens", {"<s>", "</s>", "<|im_end|>", "<|end|>", "x"});
  w.ints("tokenizer.ggml.token_type", {3, 3, 3, 1, 1});
  add_embedding(&w);
  const TempDir dir;
  write_file(dir / "m.gguf", w.bytes());
  const auto generation = load_generation_config(dir / "m.gguf");
  REQUIRE(generation.ok());
  CHECK(generation->eos_token_ids == std::vector<TokenId>{1, 4, 2});
  CHECK(load_generation_config(fixture("llama-f32.gguf"))->eos_token_ids.empty());
  // In GPT-OSS a message ends a turn only where it calls a tool or returns.
  for (const bool has_calls : {false, true}) {
    GgufWriter harmony = tiny_llama("gpt-oss");
    harmony.u32("tokenizer.ggml.eos_token_id", 2);
    harmony.texts("tokenizer.ggml.tokens", {"<|end|>", has_calls ? "<|call|>" : "x", "<|return|>"});
    harmony.ints("tokenizer.ggml.token_type", {3, 3, 3});
    add_embedding(&harmony);
    write_file(dir / "h.gguf", harmony.bytes());
    CHECK(load_generation_config(dir / "h.gguf")->eos_token_ids == std::vector<TokenId>{2, has_calls ? 1 : 0});
  }
}

TEST_CASE("what is not supported is named") {
  const auto message = [](const GgufWriter& writer) {
    const auto config = config_of(writer);
    REQUIRE(!config.ok());
    CHECK(config.status().message().find("m.gguf") != std::string::npos);
    return config.status().message();
  };
  const auto has = [](const std::string& text, const char* part) {
    CHECK_MESSAGE(text.find(part) != std::string::npos, text);
  };
  GgufWriter none;
  none.u32("a", 1);
  has(message(none), "general.architecture");
  has(message(tiny_llama("mamba")), "\"mamba\" is not supported; supported: llama");
  has(message(tiny_llama("gemma3n")), "\"gemma3n\" is not supported; of its family gemma, gemma2, gemma3");
  has(message(tiny_llama("clip")), "\"clip\" is the part of a model that sees or hears (mmproj)");
  GgufWriter adapter;
  adapter.text("general.architecture", "rwkv7");
  adapter.text("general.type", "adapter");
  has(message(adapter), "a LoRA adapter (general.type), not a model: give it as `adapter`");
  has(message(tiny_llama()), "token_embd.weight");
  GgufWriter experts = tiny_llama("gemma");
  experts.u32("gemma.expert_count", 8);
  add_embedding(&experts);
  has(message(experts), "experts");
  GgufWriter varying = GgufWriter();
  varying.text("general.architecture", "llama");
  varying.ints("llama.attention.head_count_kv", {1, 2});
  add_embedding(&varying);
  has(message(varying), "llama.attention.head_count_kv");
  GgufWriter missing = GgufWriter();
  missing.text("general.architecture", "llama");
  add_embedding(&missing);
  has(message(missing), "hidden_size");
}

TEST_CASE("weights: types that are not built, missing and misshapen tensors are named before any is read") {
  const auto refused = [](const GgufWriter& writer) {
    const TempDir dir;
    write_file(dir / "m.gguf", writer.bytes());
    const auto config = load_model_config(dir / "m.gguf");
    REQUIRE_MESSAGE(config.ok(), config.status().message());
    const auto files = WeightFiles::open(dir / "m.gguf", *config);
    REQUIRE(!files.ok());
    return files.status().message();
  };
  const auto has = [](const std::string& text, const char* part) {
    CHECK_MESSAGE(text.find(part) != std::string::npos, text);
  };
  GgufWriter w = tiny_llama();
  add_embedding(&w);
  has(refused(w), "m.gguf: tensor \"blk.0.attn_norm.weight\" is missing, expected shape [8]");
  w.f32_tensor("blk.0.attn_norm.weight", {8}, std::vector<float>(8));
  w.f32_tensor("blk.0.attn_q.weight", {8, 4}, std::vector<float>(32));
  has(refused(w), "tensor \"blk.0.attn_q.weight\" has shape [8, 4], expected [8, 8]");
  w.tensor("blk.0.ffn_up.weight", {16, 256}, 16, std::string(16 * 66, '\0'));
  has(refused(w), "tensor \"blk.0.ffn_up.weight\" has type IQ2_XXS, which is not supported; supported: F32");
  // A directory is no GGUF file, and a file that is none is refused.
  CHECK_FALSE(is_gguf_path(fixture("")));
  has(load_model_config(fixture("llama-k.golden.jsonl")).status().message(), "not a GGUF file");
}

TEST_CASE("tensors of experts are slices, names that a GGUF file has no place for are refused") {
  GgufWriter w = tiny_llama();
  w.f32_tensor("blk.0.ffn_up_exps.weight", {3, 2, 4},
               {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2});
  const std::string bytes = w.bytes();
  const auto file = GgufFile::parse({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
  REQUIRE(file.ok());
  ModelConfig config;
  ThreadPool pool(1);
  GgufSource source(*file, config, pool);
  const auto expert = [](const std::string& index) {
    return "model.layers.0.mlp.experts." + index + ".up_proj.weight";
  };
  for (int i = 0; i < 3; ++i) {
    const auto view = source.tensor(expert(std::to_string(i)), std::array<int64_t, 2>{2, 4});
    REQUIRE_MESSAGE(view.ok(), view.status().message());
    CHECK(static_cast<const float*>(view->data)[7] == static_cast<float>(i));
    CHECK(source.has(expert(std::to_string(i))));
  }
  for (const std::string index : {"3", "99999999999999999999", "-1", "x", ""}) {
    CAPTURE(index);
    CHECK_FALSE(source.tensor(expert(index), std::array<int64_t, 2>{2, 4}).ok());
  }
  CHECK_FALSE(source.tensor(expert("0"), std::array<int64_t, 2>{4, 2}).ok());
  CHECK_FALSE(source.tensor("model.layers.0.mlp.up_proj.weight", std::array<int64_t, 3>{3, 2, 4}).ok());
  for (const char* name : {"", "model.", "model.layers.", "model.layers.0", "model.layers.0.",
                           "model.layers.0.mlp.strange.weight", "transformer.strange.weight"}) {
    CHECK(source.tensor(name, std::array<int64_t, 1>{8}).status().message().find("has no name in a GGUF file") !=
          std::string::npos);
    CHECK_FALSE(source.has(name));
  }
}

TEST_CASE("rows of q and k are put back in order, in every format; norms lose the 1 that was added") {
  // Row r of a matrix is all r; q has two heads of four: pairs stand beside each other in the file.
  const auto rows_of = [](const std::string& architecture, const std::string& name, uint32_t type) {
    std::string bytes;
    for (int row = 0; row < 8; ++row)
      for (int col = 0; col < 8; ++col) {
        const auto value = static_cast<float>(row);
        bytes += type == 0 ? GgufWriter::raw(value)
                           : GgufWriter::raw(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
      }
    GgufWriter w = tiny_llama(architecture);
    add_embedding(&w);
    w.tensor("blk.0.attn_q.weight", {8, 8}, type, bytes);
    w.tensor("blk.0.attn_v.weight", {8, 8}, type, bytes);
    w.f32_tensor("blk.0.attn_q.bias", {8}, {0, 1, 2, 3, 4, 5, 6, 7});
    w.f32_tensor("blk.0.attn_norm.weight", {8}, {1, 2, 3, 4, 5, 6, 7, 8});
    const std::string file_bytes = w.bytes();
    const auto file = GgufFile::parse({reinterpret_cast<const uint8_t*>(file_bytes.data()), file_bytes.size()});
    REQUIRE(file.ok());
    ModelConfig config;
    config.head_dim = 4;
    ThreadPool pool(2);
    GgufSource source(*file, config, pool);
    const bool is_vector = name.ends_with("bias") || name.find("norm") != std::string::npos;
    const std::vector<int64_t> shape = is_vector ? std::vector<int64_t>{8} : std::vector<int64_t>{8, 8};
    const auto view = source.tensor("model.layers.0." + name, shape);
    REQUIRE_MESSAGE(view.ok(), view.status().message());
    CHECK(view->rows == (is_vector ? 1 : 8));
    CHECK(view->cols == 8);
    std::string order;
    for (int i = 0; i < 8; ++i) {
      const size_t at = is_vector ? i : i * 8 + 7;
      float value = 0;
      uint16_t half = 0;
      if (view->dtype == DType::kF32) std::memcpy(&value, static_cast<const char*>(view->data) + at * 4, 4);
      else
        std::memcpy(&half, static_cast<const char*>(view->data) + at * 2, 2),
            value = std::bit_cast<float>(uint32_t{half} << 16);
      order += std::to_string(static_cast<int>(value));
    }
    return order;
  };
  for (const uint32_t type : {0u, 30u}) {
    CHECK(rows_of("llama", "self_attn.q_proj.weight", type) == "02134657");
    CHECK(rows_of("llama", "self_attn.v_proj.weight", type) == "01234567");
    CHECK(rows_of("qwen2", "self_attn.q_proj.weight", type) == "01234567");
  }
  CHECK(rows_of("llama", "self_attn.q_proj.bias", 0) == "02134657");
  CHECK(rows_of("qwen2", "self_attn.q_proj.bias", 0) == "01234567");
  CHECK(rows_of("llama", "input_layernorm.weight", 0) == "12345678");
  CHECK(rows_of("gemma", "input_layernorm.weight", 0) == "01234567");
}

}  // namespace
}  // namespace llmb::test
