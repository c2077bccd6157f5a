#include "tests/support/tiny_model.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "base/check.h"
#include "base/float_formats.h"

namespace llmb::test {

namespace {

std::string encode(double value, DType dtype) {
  const auto as_float = static_cast<float>(value);
  uint32_t bits = std::bit_cast<uint32_t>(as_float);
  if (dtype == DType::kBF16) bits >>= 16;
  if (dtype == DType::kF16) bits = f32_to_f16(as_float);
  std::string bytes;
  for (int64_t i = 0; i < dtype_bytes(dtype); ++i) bytes.push_back(static_cast<char>(bits >> 8 * i & 0xFF));
  return bytes;
}

double decode(const char* bytes, const std::string& dtype) {
  uint32_t bits = 0;
  std::memcpy(&bits, bytes, dtype == "F32" ? 4 : 2);
  if (dtype == "F32") return std::bit_cast<float>(bits);
  if (dtype == "BF16") return std::bit_cast<float>(bits << 16);
  LLMB_CHECK(dtype == "F16");
  return f16_to_f32(static_cast<uint16_t>(bits));
}

// To the nearest value that the dtype holds; for bf16 by cutting bits, which is near enough for random weights.
double round_to(double value, DType dtype) {
  const std::string bytes = encode(value, dtype);
  return decode(bytes.data(), dtype == DType::kF32 ? "F32" : dtype == DType::kF16 ? "F16" : "BF16");
}

nlohmann::json config_json(const ModelConfig& c) {
  nlohmann::json j = {{"model_type", c.model_type},
                      {"vocab_size", c.vocab_size},
                      {"hidden_size", c.hidden_size},
                      {"intermediate_size", c.intermediate_size},
                      {"num_hidden_layers", c.num_hidden_layers},
                      {"num_attention_heads", c.num_attention_heads},
                      {"num_key_value_heads", c.num_key_value_heads},
                      {"head_dim", c.head_dim},
                      {"max_position_embeddings", c.max_position_embeddings},
                      {"rms_norm_eps", c.norm_eps},
                      {"rope_theta", c.ropes[0].theta},
                      {"tie_word_embeddings", c.tie_word_embeddings},
                      {"attention_bias", c.o_bias},
                      {"mlp_bias", c.mlp_bias},
                      {"torch_dtype", dtype_name(c.dtype)},
                      {"eos_token_id", c.eos_token_ids}};
  const RopeScaling& s = c.ropes[0].scaling;
  if (s.kind == RopeScalingKind::kLinear) j["rope_scaling"] = {{"type", "linear"}, {"factor", s.factor}};
  if (s.kind == RopeScalingKind::kLlama3)
    j["rope_scaling"] = {{"rope_type", "llama3"},
                         {"factor", s.factor},
                         {"low_freq_factor", s.low_freq_factor},
                         {"high_freq_factor", s.high_freq_factor},
                         {"original_max_position_embeddings", s.original_max_position_embeddings}};
  return j;
}

class RandomTensors {
 public:
  RandomTensors(DType dtype, uint64_t seed) : dtype_(dtype), random_(seed) {}

  void add(const std::string& name, std::vector<int64_t> shape, double mean, double stddev) {
    TestTensor& t = tensors_[name];
    t.shape = shape;
    int64_t size = 1;
    for (const int64_t d : shape) size *= d;
    std::normal_distribution<double> normal(mean, stddev);
    for (int64_t i = 0; i < size; ++i) t.values.push_back(round_to(normal(random_), dtype_));
  }
  void linear(const std::string& name, int64_t out, int64_t in, bool bias) {
    add(name + ".weight", {out, in}, 0, 1.5 / std::sqrt(static_cast<double>(in)));
    if (bias) add(name + ".bias", {out}, 0, 0.5);
  }
  TestTensors take() { return std::move(tensors_); }

 private:
  DType dtype_;
  std::mt19937_64 random_;
  TestTensors tensors_;
};

void read_tensors_of_file(const std::string& path, TestTensors* out) {
  const std::string bytes = read_file(path);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), 8);
  const auto header = nlohmann::json::parse(bytes.substr(8, header_bytes));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const std::string dtype = entry.at("dtype");
    const size_t width = dtype == "F32" ? 4 : 2;
    TestTensor& t = (*out)[name];
    t.shape = entry.at("shape").get<std::vector<int64_t>>();
    const size_t begin = entry.at("data_offsets")[0], end = entry.at("data_offsets")[1];
    for (size_t at = begin; at < end; at += width)
      t.values.push_back(decode(bytes.data() + 8 + header_bytes + at, dtype));
  }
}

}  // namespace

ModelConfig tiny_config() {
  ModelConfig c;
  c.model_type = "llama";
  c.vocab_size = 96;
  c.hidden_size = 32;
  c.intermediate_size = 48;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.head_dim = 8;
  c.max_position_embeddings = 128;
  c.dtype = DType::kF32;
  c.eos_token_ids = {2};
  return c;
}

TestTensors random_tensors(const ModelConfig& c, uint64_t seed) {
  RandomTensors r(c.dtype, seed);
  r.add("model.embed_tokens.weight", {c.vocab_size, c.hidden_size}, 0, 0.5);
  if (!c.tie_word_embeddings) r.add("lm_head.weight", {c.vocab_size, c.hidden_size}, 0, 0.5);
  r.add("model.norm.weight", {c.hidden_size}, 1, 0.3);
  for (int layer = 0; layer < c.num_hidden_layers; ++layer) {
    const std::string p = "model.layers." + std::to_string(layer) + ".";
    r.add(p + "input_layernorm.weight", {c.hidden_size}, 1, 0.3);
    r.add(p + "post_attention_layernorm.weight", {c.hidden_size}, 1, 0.3);
    r.linear(p + "self_attn.q_proj", c.q_size(), c.hidden_size, c.qkv_bias);
    r.linear(p + "self_attn.k_proj", c.kv_size(), c.hidden_size, c.qkv_bias);
    r.linear(p + "self_attn.v_proj", c.kv_size(), c.hidden_size, c.qkv_bias);
    r.linear(p + "self_attn.o_proj", c.hidden_size, c.q_size(), c.o_bias);
    r.linear(p + "mlp.gate_proj", c.intermediate_size, c.hidden_size, c.mlp_bias);
    r.linear(p + "mlp.up_proj", c.intermediate_size, c.hidden_size, c.mlp_bias);
    r.linear(p + "mlp.down_proj", c.hidden_size, c.intermediate_size, c.mlp_bias);
  }
  return r.take();
}

std::string safetensors_bytes(const TestTensors& tensors, DType dtype) {
  nlohmann::json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const auto& [name, t] : tensors) {
    const size_t begin = data.size();
    for (const double value : t.values) data += encode(value, dtype);
    header[name] = {{"dtype", dtype == DType::kF32   ? "F32"
                              : dtype == DType::kF16 ? "F16"
                                                     : "BF16"},
                    {"shape", t.shape},
                    {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  const uint64_t size = text.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &size, 8);
  return bytes + text + data;
}

void write_model(const std::string& dir, const ModelConfig& config, const TestTensors& tensors, int num_shards) {
  write_file(dir + "/config.json", config_json(config).dump(2));
  if (num_shards == 1) return write_file(dir + "/model.safetensors", safetensors_bytes(tensors, config.dtype));
  std::vector<TestTensors> shards(num_shards);
  nlohmann::json map = nlohmann::json::object();
  int next = 0;
  for (const auto& [name, t] : tensors) {
    map[name] = "model-" + std::to_string(next + 1) + ".safetensors";
    shards[next][name] = t;
    next = (next + 1) % num_shards;
  }
  for (int i = 0; i < num_shards; ++i)
    write_file(dir + "/model-" + std::to_string(i + 1) + ".safetensors", safetensors_bytes(shards[i], config.dtype));
  write_file(dir + "/model.safetensors.index.json",
             nlohmann::json({{"metadata", {{"total_size", 1}}}, {"weight_map", map}}).dump());
}

TestTensors read_tensors(const std::string& dir) {
  TestTensors tensors;
  for (const auto& entry : std::filesystem::directory_iterator(dir))
    if (entry.path().extension() == ".safetensors") read_tensors_of_file(entry.path().string(), &tensors);
  return tensors;
}

}  // namespace llmb::test
