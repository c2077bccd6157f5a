// GGUF files and fp8 scales that were made to do harm: refused, naming what is wrong, within two seconds of processor
// time and 64 MiB beyond the file, before a weight is read. gguf_file_test has the container, gguf_tokenizer_test the
// tokenizer more closely.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "chat/chat_template.h"
#include "model/config_loader.h"
#include "model/gguf_model.h"
#include "model/weight_files.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/process.h"
#include "tests/support/raw_safetensors.h"
#include "tests/support/refused_gguf.h"
#include "tests/support/temp_dir.h"
#include "tokenizer/tokenizer.h"

namespace llmb::test {

namespace {

// A llama, with each key once: what a case changes it says instead of this.
GgufWriter llama_with(const std::string& changed = "", const std::function<void(GgufWriter&)>& change = {}) {
  GgufWriter w;
  w.text("general.architecture", "llama");
  for (const auto& [key, value] : {std::pair("context_length", 64),
                                   {"embedding_length", 8},
                                   {"block_count", 1},
                                   {"feed_forward_length", 16},
                                   {"attention.head_count", 2},
                                   {"attention.head_count_kv", 1}})
    if (changed != key) w.u32(std::string("llama.") + key, static_cast<uint32_t>(value));
  if (changed != "attention.layer_norm_rms_epsilon") w.f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  if (change) change(w);
  w.f32_tensor("token_embd.weight", {16, 8}, std::vector<float>(128, 0.5f));
  return w;
}

GgufWriter llama_with_integer(const std::string& key, uint64_t value) {
  return llama_with(key, [&](GgufWriter& w) { w.entry("llama." + key, 10, GgufWriter::raw(value)); });
}

GgufWriter llama_with_number(const std::string& key, float value) {
  return llama_with(key, [&](GgufWriter& w) { w.f32("llama." + key, value); });
}

}  // namespace

TEST_CASE("FAULTS 30: a GGUF file that is cut, or whose numbers lie, is refused as a model") {
  const std::string good = llama_with().bytes();
  const TempDir dir;
  const std::string path = dir / "m.gguf";
  const auto check = [&](const std::string& bytes, const std::string& part) {
    write_file(path, bytes);
    check_refused(
        path, bytes.size(), [&] { return open_model(path); }, part);
  };
  check(good, "tensor \"blk.0.attn_norm.weight\" is missing");
  for (const size_t size : {size_t{0}, size_t{4}, size_t{23}, good.size() / 2, good.size() - 1})
    check(good.substr(0, size), path);
  for (const size_t at : {8, 16, 24}) {  // tensors, keys, the length of the first key
    std::string bytes = good;
    std::memset(bytes.data() + at, 0xff, 8);
    check(bytes, path);
  }
  check_model_refused(llama_with("",
                                 [](GgufWriter& w) {
                                   w.tensor("t", {1 << 30, 1 << 30, 1 << 30}, 0, "");
                                 }),
                      "overflows");
  check_model_refused(llama_with("", [](GgufWriter& w) { w.tensor("t", {1 << 20, 1 << 20}, 0, ""); }), "");
  check_model_refused(llama_with("", [](GgufWriter& w) { w.tensor("t", {4}, 9999, ""); }), "9999 is not known");
  check_model_refused(llama_with("", [](GgufWriter& w) { w.f32_tensor("token_embd.weight", {1}, {1}); }), "twice");
}

TEST_CASE("FAULTS 32: no value brings a reader of any architecture down; what is refused is named in one line") {
  const auto status_of = [](const GgufWriter& w) {
    const std::string bytes = w.bytes();
    const auto file = GgufFile::parse({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
    if (!file.ok()) return file.status();
    const auto config = gguf_config_json(*file);
    return config.ok() ? parse_model_config(config->dump()).status() : config.status();
  };
  GgufWriter unknown;
  unknown.text("general.architecture", "unheard-of");
  const std::string message = status_of(unknown).message();
  std::string names = message.substr(message.find("supported: ") + 11);
  int num_architectures = 0;
  for (size_t end; !names.empty(); names.erase(0, end == std::string::npos ? end : end + 2), ++num_architectures) {
    end = names.find(", ");
    const std::string architecture = names.substr(0, end);
    CAPTURE(architecture);
    for (const std::string key :
         {"block_count", "embedding_length", "context_length", "attention.head_count", "attention.head_count_kv",
          "attention.key_length", "rope.dimension_count", "nextn_predict_layers", "attention.sliding_window",
          "attention.sliding_window_pattern", "expert_count", "expert_used_count", "expert_feed_forward_length",
          "expert_shared_count", "leading_dense_block_count", "interleave_moe_layer_step", "attention.key_length_mla",
          "attention.kv_lora_rank", "rope.scaling.original_context_length", "rope.scaling.yarn_log_multiplier"})
      for (const int64_t value : {int64_t{0}, int64_t{-1}, int64_t{1} << 31, INT64_MIN, INT64_MAX}) {
        CAPTURE(key);
        CAPTURE(value);
        GgufWriter w;
        w.text("general.architecture", architecture);
        for (const auto& [field, good] : {std::pair("context_length", 64), {"embedding_length", 16}, {"block_count", 4},
                                          {"feed_forward_length", 32}, {"attention.head_count", 2},
                                          {"nextn_predict_layers", 1}, {"attention.sliding_window", 7}})
          if (key != field) w.u32(architecture + "." + field, static_cast<uint32_t>(good));
        w.f32(architecture + ".attention.temperature_scale", 0.1f);
        w.entry(architecture + "." + key, 11, GgufWriter::raw(value));
        w.f32_tensor("token_embd.weight", {16, 16}, std::vector<float>(256, 0.5f));
        const Status status = status_of(w);
        CHECK((status.ok() || (!status.message().empty() && status.message().find('\n') == std::string::npos)));
      }
  }
  CHECK(num_architectures >= 46);
}

TEST_CASE("FAULTS 32: values of a GGUF file with which nobody can compute are refused, naming the field") {
  check_model_refused(llama_with_integer("block_count", 1'000'000'000), "num_hidden_layers");
  check_model_refused(llama_with_integer("block_count", 0), "num_hidden_layers");
  check_model_refused(llama_with_integer("block_count", ~uint64_t{0}), "num_hidden_layers");
  check_model_refused(llama_with_integer("attention.head_count", 0), "num_attention_heads");
  check_model_refused(llama_with_integer("attention.head_count", 3), "num_attention_heads");
  check_model_refused(llama_with_integer("attention.head_count_kv", 0), "num_key_value_heads");
  check_model_refused(llama_with_integer("attention.key_length", 1 << 30), "out of range");
  check_model_refused(llama_with_integer("embedding_length", ~uint64_t{0}), "hidden_size");
  check_model_refused(llama_with_integer("context_length", 0), "max_position_embeddings");
  check_model_refused(llama_with_integer("feed_forward_length", 1 << 30), "intermediate_size");
  check_model_refused(llama_with_integer("rope.dimension_count", 1 << 20), "rope.dimension_count");
  check_model_refused(llama_with_integer("expert_count", 1 << 30), "experts");
  for (const float bad : {NAN, std::numeric_limits<float>::infinity()}) {
    check_model_refused(llama_with_number("attention.layer_norm_rms_epsilon", bad),
                        "layer_norm_rms_epsilon\" is not a");
    check_model_refused(llama_with_number("rope.freq_base", bad), "\"llama.rope.freq_base\" is not a finite number");
  }
  check_model_refused(llama_with_number("attention.layer_norm_rms_epsilon", -1), "rms_norm_eps");
  for (const float theta : {0.0f, -5.0f}) check_model_refused(llama_with_number("rope.freq_base", theta), "rope_theta");
  check_model_refused(llama_with("",
                                 [](GgufWriter& w) {
                                   w.f32_tensor("rope_freqs.weight", {2}, {NAN, INFINITY});
                                 }),
                      "rope_freqs.weight");
  check_model_refused(llama_with("block_count", [](GgufWriter& w) { w.text("llama.block_count", "one"); }),
                      "llama.block_count");
}

TEST_CASE("FAULTS 33: a tokenizer in a GGUF file that makes no sense is refused") {
  const TempDir dir;
  const std::string path = dir / "m.gguf";
  const auto check = [&](const std::function<void(GgufWriter&)>& fill, const std::string& part) {
    GgufWriter w;
    fill(w);
    const std::string bytes = w.bytes();
    write_file(path, bytes);
    check_refused(
        path, bytes.size(), [&] { return Tokenizer::load(path).status(); }, part);
  };
  const auto bpe = [](GgufWriter& w, std::vector<std::string> tokens, std::vector<std::string> merges) {
    w.text("tokenizer.ggml.model", "gpt2");
    w.text("tokenizer.ggml.pre", "gpt-2");
    w.texts("tokenizer.ggml.tokens", tokens);
    w.texts("tokenizer.ggml.merges", merges);
  };
  check([&](GgufWriter& w) { bpe(w, {"a", "b", "a"}, {}); }, "");
  check([&](GgufWriter& w) { bpe(w, {"a", "b"}, {"a b"}); }, "");
  check([&](GgufWriter& w) { bpe(w, {"a", "\xff\xfe"}, {}); }, "not UTF-8");
  check([&](GgufWriter& w) { w.text("tokenizer.ggml.model", "magic"); }, "");
  check([&](GgufWriter& w) { w.text("general.name", "none"); }, "has no tokenizer");
  check(
      [&](GgufWriter& w) {
        bpe(w, {"a", "b"}, {});
        w.ints("tokenizer.ggml.token_type", {1});
      },
      "tokenizer.ggml.token_type");
  check(
      [](GgufWriter& w) {
        w.text("tokenizer.ggml.model", "llama");
        w.texts("tokenizer.ggml.tokens", {"<unk>", "a"});
        w.floats("tokenizer.ggml.scores", {0, NAN});
      },
      "");
}

TEST_CASE("FAULTS 35: a template in a GGUF file that never ends is an error, not a hanging run") {
  const TempDir dir;
  const std::string path = dir / "m.gguf";
  for (const char* source : {"{% for i in range(1000000000) %}x{% endfor %}",
                             "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ 'x' * 1000000000 }}", "{% if %}"}) {
    GgufWriter w;
    w.text("tokenizer.chat_template", source);
    const std::string bytes = w.bytes();
    write_file(path, bytes);
    check_refused(
        path, bytes.size(),
        [&] {
          const auto chat = ChatTemplate::load(path);
          if (!chat.ok()) return chat.status();
          ChatMessages input;
          input.messages_json = R"([{"role":"user","content":"hi"}])";
          return (*chat)->render(input).status();
        },
        "");
  }
}

TEST_CASE("FAULTS 30: fp8 scales that do not fit or are no numbers are refused before a weight is read") {
  const std::string config = R"({"model_type": "llama", "vocab_size": 16, "hidden_size": 8, "intermediate_size": 16,
      "num_hidden_layers": 1, "num_attention_heads": 2, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
      "quantization_config": {"quant_method": "fp8", "weight_block_size": [4, 4]}})";
  const std::vector<uint16_t> ones(128, 0x3f80);
  const std::string name = "model.layers.0.self_attn.q_proj.weight";
  const auto check = [&](const std::vector<RawTensor>& q, const std::string& part) {
    const TempDir dir;
    std::vector<RawTensor> tensors = {
        {"model.embed_tokens.weight", "BF16", {16, 8}, bytes_of(ones)},
        {"model.layers.0.input_layernorm.weight", "BF16", {8}, bytes_of(std::vector<uint16_t>(8, 0x3f80))}};
    tensors.insert(tensors.end(), q.begin(), q.end());
    const std::string bytes = raw_safetensors(tensors);
    write_file(dir / "config.json", config);
    write_file(dir / "model.safetensors", bytes);
    check_refused(
        dir.path(), bytes.size(), [&] { return open_model(dir.path()); }, part);
  };
  const RawTensor weight = {name, "F8_E4M3", {8, 8}, std::string(64, '\x38')};
  const auto floats = [&](std::vector<int64_t> shape, const std::vector<float>& values) {
    return RawTensor{name + "_scale_inv", "F32", std::move(shape), bytes_of(values)};
  };
  check({weight, floats({2, 2}, {1, 1, 1, 1})}, "k_proj");  // this one is good: the next is missing
  check({weight}, "is F8_E4M3 without a scale");
  check({weight, floats({3}, {1, 1, 1})}, "has shape [3], expected one scale");
  check({weight, floats({0}, {})}, "has shape [0], expected one scale");
  check({weight, floats({4, 4}, std::vector<float>(16, 1))}, "has shape [4, 4]");
  check({weight, {name + "_scale_inv", "I8", {2, 2}, std::string(4, '\1')}}, "has dtype I8, expected F32");
  for (const float bad : {NAN, INFINITY, -INFINITY})
    check({weight, floats({2, 2}, {1, 1, bad, 1})}, "holds a scale that is not finite");
  check({{name, "F8_E5M2", {8, 8}, std::string(64, '\x38')}, floats({1}, {1})}, "F8_E5M2");
}

}  // namespace llmb::test
