// The values of a GGUF file as a config.json.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "model/gguf_config_json.h"
#include "model/gguf_dequantise.h"
#include "model/gguf_model.h"

namespace llmb {

namespace {

using nlohmann::json;

constexpr GgufArchitecture kGgufArchitectures[] = {
    // name, model_type, interleaved, plus one, post attention norm
    {"llama", "llama", true, false, false},         {"qwen2", "qwen2", false, false, false},
    {"qwen3", "qwen3", false, false, false},        {"gemma", "gemma", false, true, false},
    {"gemma2", "gemma2", false, true, true},        {"gemma3", "gemma3_text", false, true, true},
    {"phi3", "phi3", false, false, false},          {"granite", "granite", true, false, false},
    {"smollm3", "smollm3", true, false, false},     {"olmo2", "olmo2", false, false, true},
    {"qwen3moe", "qwen3_moe", false, false, false}, {"starcoder2", "starcoder2", false, false, false},
    {"gpt-oss", "gpt_oss", false, false, true},     {"gpt2", "gpt2", false, false, false},
    {"gptneox", "gpt_neox", false, false, false},   {"falcon", "falcon", false, false, false},
    {"bloom", "bloom", false, false, false},        {"mpt", "mpt", false, false, false},
    {"deepseek2", "deepseek_v3", false, false, false}, {"qwen2moe", "qwen2_moe", false, false, false},
    {"glm4moe", "glm4_moe", false, false, true},    {"seed_oss", "seed_oss", false, false, true},
    {"mistral3", "mistral", true, false, false},    {"chatglm", "glm", true, false, false},
    {"glm4", "glm4", true, false, false},           {"command-r", "cohere", true, false, false},
    {"cohere2", "cohere2", true, false, false},     {"exaone4", "exaone4", false, false, true},
    {"ernie4_5", "ernie4_5", true, false, false},   {"ernie4_5-moe", "ernie4_5_moe", true, false, false},
    {"phi2", "phi", false, false, false},           {"hunyuan-dense", "hunyuan_v1_dense", false, false, false},
    {"internlm2", "llama", true, false, false},     {"hunyuan-moe", "hunyuan_v1_moe", false, false, false},
    {"nemotron", "nemotron", false, true, false},   {"olmo", "olmo", true, false, false},
    {"olmoe", "olmoe", false, false, false},        {"stablelm", "stablelm", false, false, false},
    {"granitemoe", "granitemoe", true, false, false}, {"llama4", "llama4_text", true, false, false},
    {"arcee", "arcee", true, false, false},         {"dots1", "dots1", false, false, false},
    {"starcoder", "gpt_bigcode", false, false, false}, {"qwen2vl", "qwen2_vl", false, false, false},
    {"qwen3vl", "qwen3_vl_text", false, false, false}, {"qwen3vlmoe", "qwen3_moe", false, false, false},
    {"qwen35", "qwen3_5_text", false, true, true},  {"qwen35moe", "qwen3_5_moe_text", false, true, true},
    {"qwen3next", "qwen3_next", false, true, true}, {"gemma4", "gemma4_text", false, false, true},
    {"gemma-embedding", "gemma3_text", false, true, true}, {"lfm2", "lfm2", false, false, false},
    {"granitehybrid", "granitemoehybrid", true, false, false}, {"nemotron_h", "nemotron_h", false, false, false},
    {"nemotron_h_moe", "nemotron_h", false, false, false}, {"bert", "bert", false, false, false},
    {"nomic-bert", "nomic_bert", false, false, false}, {"modern-bert", "modernbert", false, false, false},
};

std::string layer_key(const char* name) { return std::string("blk.0.") + name; }

Result<std::vector<float>> float_tensor(const GgufFile& file, const char* name, int64_t size) {
  const GgufTensor* tensor = file.tensor(name);
  if (tensor == nullptr || tensor->shape.size() != 1 || tensor->cols() != size ||
      std::string_view(tensor->type->name) != "F32")
    return data_loss(std::string("tensor \"") + name + "\" is not " + std::to_string(size) + " F32 numbers");
  std::vector<float> values(size);
  dequantise_row(*tensor->type, tensor->data.data(), size, values.data());
  return values;
}

// Llama 3.1's scaling is stored as what each frequency is divided by. It is Llama 3.1's if its formula gives the same.
void read_llama3_factors(GgufConfigJson& c, int64_t head_dim) {
  const auto factors = float_tensor(c.file(), "rope_freqs.weight", head_dim / 2);
  if (!factors.ok()) return c.fail(factors.status());
  const double theta = c.out.value("rope_theta", 10000.0), factor = factors->back();
  constexpr double kLow = 1, kOriginal = 8192;
  const auto fits = [&](double high) {
    for (size_t i = 0; i < factors->size(); ++i) {
      const double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
      const double turns = kOriginal * frequency / (2 * M_PI);
      const double smooth = (turns - kLow) / (high - kLow);
      const double expected = turns > high ? 1 : turns < kLow ? factor : 1 / ((1 - smooth) / factor + smooth);
      if (!(std::fabs((*factors)[i] - expected) <= 1e-3 * expected)) return false;
    }
    return true;
  };
  const double high = fits(4) ? 4 : 1;  // 1 in Llama 4: nothing lies between what is kept and what is stretched
  if (high == 1 && !fits(1))
    return c.fail(unsupported("\"rope_freqs.weight\" holds other factors than Llama 3.1's; they are not supported"));
  if (!(factor > 1)) return;
  c.out["rope_scaling"] = {{"rope_type", "llama3"},
                           {"factor", factor},
                           {"low_freq_factor", kLow},
                           {"high_freq_factor", high},
                           {"original_max_position_embeddings", static_cast<int64_t>(kOriginal)}};
}

void read_longrope_factors(GgufConfigJson& c, int64_t rotary_dim) {
  json scaling = {{"type", "longrope"}};
  for (const auto& [field, name] :
       {std::pair("long_factor", "rope_factors_long.weight"), std::pair("short_factor", "rope_factors_short.weight")}) {
    const auto factors = float_tensor(c.file(), name, rotary_dim / 2);
    if (!factors.ok()) return c.fail(factors.status());
    scaling[field] = *factors;
  }
  c.out["rope_scaling"] = std::move(scaling);
  c.integer("original_max_position_embeddings", "rope.scaling.original_context_length");
}

void read_rope(GgufConfigJson& c, const GgufTensor& embedding) {
  c.number("rope_theta", "rope.freq_base");
  const int64_t heads = c.out.value("num_attention_heads", int64_t{0});
  if (heads < 1) return;
  const int64_t head_dim = c.out.value("head_dim", embedding.cols() / heads);
  const int64_t rotary_dim = c.integer_of("rope.dimension_count").value_or(head_dim);
  if (rotary_dim < 2 || rotary_dim > head_dim || rotary_dim > 4096)
    return c.fail(data_loss("\"rope.dimension_count\" is out of range"));
  if (rotary_dim != head_dim)
    c.out["partial_rotary_factor"] = static_cast<double>(rotary_dim) / static_cast<double>(head_dim);
  if (c.has("rope_freqs.weight")) return read_llama3_factors(c, rotary_dim);
  if (c.has("rope_factors_long.weight")) return read_longrope_factors(c, rotary_dim);
  const std::string scaling = c.text("rope.scaling.type");
  if (scaling.empty() || scaling == "none") return;
  json& fields = c.out["rope_scaling"];
  fields = {{"rope_type", scaling}};
  c.number("factor", "rope.scaling.factor", &fields);
  c.integer("original_max_position_embeddings", "rope.scaling.original_context_length", &fields);
  for (const auto& [field, key] : {std::pair("beta_fast", "rope.scaling.yarn_beta_fast"),
                                   std::pair("beta_slow", "rope.scaling.yarn_beta_slow"),
                                   std::pair("attention_factor", "rope.scaling.yarn_attn_factor")})
    if (scaling == "yarn") c.number(field, key, &fields);
}

// Architectures from before Llama, with LayerNorm.
void read_older_particulars(GgufConfigJson& c) {
  const std::string type = c.out["model_type"];
  json& out = c.out;
  const auto has = [&](const char* name) { return c.has(layer_key(name).c_str()); };
  c.number(type == "gpt_neox"     ? "layer_norm_eps"
           : type == "starcoder2" ? "norm_epsilon"
                                  : "layer_norm_epsilon",
           "attention.layer_norm_epsilon");
  if (type == "gpt2") c.integer("n_inner", "feed_forward_length");
  if (type == "bloom") c.integer("seq_length", "context_length");
  if (type == "gpt_neox") {
    out["rotary_emb_base"] = out.value("rope_theta", 10000.0);
    out["rotary_pct"] = out.value("partial_rotary_factor", 1.0);
    out["use_parallel_residual"] = c.boolean_of("use_parallel_residual").value_or(true);
    out["attention_bias"] = has("attn_qkv.bias");
  }
  if (type == "falcon") {
    const bool is_new = out.value("num_key_value_heads", int64_t{1}) > 1;
    out["new_decoder_architecture"] = is_new;
    out["multi_query"] = true;
    c.integer("num_kv_heads", "attention.head_count_kv");
    if (is_new) out["num_ln_in_parallel_attn"] = has("attn_norm_2.weight") ? 2 : 1;
    c.integer("ffn_hidden_size", "feed_forward_length");
    out["bias"] = has("attn_qkv.bias");
  }
  if (type == "mpt") {
    c.integer("max_seq_len", "context_length");
    json attention = {{"alibi", true}};
    c.number("clip_qkv", "attention.clamp_kqv", &attention);
    c.number("alibi_bias_max", "attention.max_alibi_bias", &attention);
    out["attn_config"] = std::move(attention);
    if (has("attn_qkv.bias") || has("attn_q_norm.weight"))
      c.fail(unsupported("biases and norms of q and k (MPT) are not supported"));
  }
}

// Fields of single architectures, beyond the sizes.
void read_particulars(GgufConfigJson& c) {
  const std::string type = c.out["model_type"];
  json& out = c.out;
  const auto has = [&](const char* name) { return c.has(layer_key(name).c_str()); };
  if (type == "llama" || type == "granite" || type == "smollm3") {
    out["attention_bias"] = has("attn_q.bias");
    out["mlp_bias"] = has("ffn_gate.bias");
  }
  read_expert_particulars(c);
  read_decoder_particulars(c);
  if (type == "seed_oss") {
    out["attention_bias"] = has("attn_q.bias");
    out["attention_out_bias"] = has("attn_output.bias");
    out["mlp_bias"] = has("ffn_gate.bias");
  }
  if (type == "qwen2" && !has("attn_q.bias")) c.fail(data_loss("tensor \"blk.0.attn_q.bias\" is missing"));
  if (type == "granite" || type == "granitemoe") {
    c.number("logits_scaling", "logit_scale");
    c.number("embedding_multiplier", "embedding_scale");
    c.number("residual_multiplier", "residual_scale");
    c.number("attention_multiplier", "attention.scale");
  }
  if (type == "smollm3") out["no_rope_layer_interval"] = 4;
  for (const char* name : {"phi3", "gemma2", "gemma3_text", "starcoder2", "gpt_oss"})
    if (type == name) c.integer("sliding_window", "attention.sliding_window");
  for (const char* name : {"starcoder2", "gpt2", "gpt_neox", "falcon", "bloom", "mpt"})
    if (type == name) read_older_particulars(c);
  if (type == "mixtral" || type == "qwen3_moe" || type == "gpt_oss") {
    c.integer("num_experts", "expert_count");
    c.integer("num_experts_per_tok", "expert_used_count");
    out["norm_topk_prob"] = true;
  }
  if (type == "gpt_oss") {
    c.integer("intermediate_size", "expert_feed_forward_length");
    // The frequencies between what is kept and what is stretched are not rounded; no key says so.
    if (out.contains("rope_scaling")) out["rope_scaling"]["truncate"] = false;
  }
  if (type == "qwen3_moe") c.integer("moe_intermediate_size", "expert_feed_forward_length");
  if (type.starts_with("gemma")) {
    out["hidden_activation"] = "gelu_pytorch_tanh";
    out["hidden_act"] = "gelu_pytorch_tanh";
  }
  if (type == "gemma2" || type == "gemma3_text") {
    // Not stored: the head's size, but in the 27B models of both.
    const int64_t heads = out.value("num_attention_heads", int64_t{1}), hidden = out.value("hidden_size", int64_t{0});
    const bool is_27b = out.value("num_hidden_layers", 0) == (type == "gemma2" ? 46 : 62);
    out["query_pre_attn_scalar"] = is_27b && heads > 0 ? hidden / heads : out.value("head_dim", int64_t{256});
  }
  if (type == "gemma2") {
    c.number("attn_logit_softcapping", "attn_logit_softcapping");
    c.number("final_logit_softcapping", "final_logit_softcapping");
  }
  if (type == "gemma3_text") {
    out["rope_local_base_freq"] = 10000.0;
    c.number("rope_local_base_freq", "rope.freq_base_swa");
    c.number("final_logit_softcapping", "final_logit_softcapping");
    out["sliding_window_pattern"] = c.integer_of("attention.sliding_window_pattern").value_or(6);
  }
}

const char* weights_dtype(const GgufFile& file) {
  const GgufTensor* tensor = nullptr;
  for (const char* name : {"blk.0.attn_output.weight", "blk.0.ssm_out.weight", "blk.0.shortconv.out_proj.weight",
                           "blk.0.ffn_down.weight", "blk.0.ffn_down_exps.weight"})
    if (tensor == nullptr) tensor = file.tensor(name);
  const std::string_view type = tensor != nullptr ? tensor->type->name : "";
  return type == "F16" ? "float16" : type == "BF16" ? "bfloat16" : "float32";
}

template <typename T>
Result<T> from_file(const std::string& path, Result<T> (*read)(const GgufFile&)) {
  LLMB_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::open(path));
  Result<T> result = read(file);
  LLMB_RETURN_IF_ERROR(file.still_readable());
  if (!result.ok()) return result.status().with_context(path);
  return result;
}

Result<ModelConfig> read_config(const GgufFile& file) {
  LLMB_ASSIGN_OR_RETURN(const json config, gguf_config_json(file));
  LLMB_ASSIGN_OR_RETURN(ModelConfig parsed, parse_model_config(config.dump()));
  for (const GgufTensor& tensor : file.tensors())
    parsed.is_dequantised = parsed.is_dequantised || tensor.type->block_size > 1;
  if (parsed.is_dequantised) parsed.dtype = DType::kF32;
  return parsed;
}

// Ends of a turn that converters stored under no key of their own, as text of the vocabulary.
bool is_end_of_turn(std::string_view token) {
  for (const char* end : {"<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|end|>", "<|endoftext|>", "<|eom_id|>",
                          "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<|end_of_text|>", "<end_of_utterance>",
                          "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<turn|>", "<|tool_response>", "[e~["})
    if (token == end) return true;
  return false;
}

Result<GenerationConfig> read_generation_config(const GgufFile& file) {
  constexpr int64_t kControl = 3;
  GenerationConfig config;
  const auto add = [&](int64_t id) {
    std::vector<TokenId>& ids = config.eos_token_ids;
    if (id >= 0 && id <= INT32_MAX && std::find(ids.begin(), ids.end(), id) == ids.end())
      ids.push_back(static_cast<TokenId>(id));
  };
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"})
    if (const auto id = file.integer(key)) add(*id);
  const GgufValue *tokens = file.find("tokenizer.ggml.tokens"), *types = file.find("tokenizer.ggml.token_type");
  if (tokens == nullptr || !tokens->is_array || tokens->type != GgufValueType::kString) return config;
  if (types == nullptr || !types->is_array || !is_gguf_integer(types->type)) return config;
  GgufStrings strings(*tokens);
  std::string_view token;
  std::optional<int64_t> end_of_message;  // which ends a turn, but not where calls of tools have an end of their own
  bool has_calls = false;
  for (uint64_t id = 0; strings.next(&token); ++id) {
    if (!is_end_of_turn(token) || id >= types->count || gguf_integer(*types, id) != kControl) continue;
    if (token == "<|end|>") end_of_message = static_cast<int64_t>(id);
    else add(static_cast<int64_t>(id));
    has_calls = has_calls || token == "<|call|>" || token == "<|calls|>";
  }
  if (end_of_message && !has_calls) add(*end_of_message);
  return config;
}

// GLM-4V's positions have parts for time, height and width, and its q and k were put into the order of halves.
bool has_halves(const GgufArchitecture& architecture, const GgufFile& file) {
  const GgufValue* sections = file.find("glm4.rope.dimension_sections");
  if (architecture.name != std::string_view("glm4") || sections == nullptr || !sections->is_array) return false;
  return is_gguf_integer(sections->type) && sections->count >= 2 && gguf_integer(*sections, 0) > 0 &&
         gguf_integer(*sections, 1) > 0;
}

// Behind the name of an architecture: what the file may be in place of a model; or all that are supported, those of its
// family first, which begin with as many letters as it does.
std::string why_unsupported(const GgufFile& file, std::string_view name) {
  constexpr size_t kFamily = 4;
  if (file.text("general.type") == "adapter")
    return " is not supported; the file is a LoRA adapter (general.type), not a model: give it as `adapter`";
  if (name == "clip" || file.text("general.type") == "mmproj")
    return " is the part of a model that sees or hears (mmproj), not a model of text: give the file with the text part";
  std::string family, all;
  for (const GgufArchitecture& architecture : kGgufArchitectures) {
    all += (all.empty() ? "" : ", ") + std::string(architecture.name);
    if (name.size() >= kFamily && std::string_view(architecture.name).starts_with(name.substr(0, kFamily)))
      family += (family.empty() ? "" : ", ") + std::string(architecture.name);
  }
  return " is not supported; " + (family.empty() ? "" : "of its family " + family + " are; ") + "supported: " + all;
}

}  // namespace

int64_t count_layers(GgufConfigJson& c) {
  const int64_t all = c.out.value("num_hidden_layers", int64_t{0}),
                more = c.integer_of("nextn_predict_layers").value_or(0);
  if (all < 1 || all > kMaxGgufBlocks)
    c.fail(data_loss("\"num_hidden_layers\" (block_count) " + std::to_string(all) + " is not from 1 to " +
                     std::to_string(kMaxGgufBlocks)));
  else if (more < 0 || more >= all) c.fail(data_loss("\"nextn_predict_layers\" is out of range"));
  if (!c.status.ok()) return 0;
  c.out["num_hidden_layers"] = all - more;
  return all - more;
}

bool is_gguf_path(const std::string& model_path) {
  std::error_code error;
  return std::filesystem::is_regular_file(model_path, error);
}

Result<GgufArchitecture> gguf_architecture(const GgufFile& file) {
  const auto name = file.text("general.architecture");
  if (!name) return data_loss("has no general.architecture: not a model");
  for (const GgufArchitecture& architecture : kGgufArchitectures) {
    if (architecture.name != *name) continue;
    GgufArchitecture found = architecture;
    if (has_halves(found, file)) found.is_rope_interleaved = false;
    return found;
  }
  return unsupported("GGUF architecture \"" + escape_control(name->substr(0, 60)) + "\"" + why_unsupported(file, *name));
}

Result<json> gguf_config_json(const GgufFile& file) {
  LLMB_ASSIGN_OR_RETURN(const GgufArchitecture architecture, gguf_architecture(file));
  const GgufTensor* embedding = file.tensor("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2)
    return data_loss("tensor \"token_embd.weight\" is missing, or no matrix");
  GgufConfigJson c(file, architecture);
  c.out["vocab_size"] = embedding->shape[0];
  c.integer("hidden_size", "embedding_length");
  const bool is_unlike = has_unlike_gguf_layers(architecture.model_type);
  if (is_unlike) c.largest("intermediate_size", "feed_forward_length");
  else c.integer("intermediate_size", "feed_forward_length");
  c.integer("num_hidden_layers", "block_count");
  c.integer("num_attention_heads", "attention.head_count");
  if (is_unlike) c.largest("num_key_value_heads", "attention.head_count_kv");
  else c.integer("num_key_value_heads", "attention.head_count_kv");
  c.integer("head_dim", "attention.key_length");
  c.integer("max_position_embeddings", "context_length");
  c.number("rms_norm_eps", "attention.layer_norm_rms_epsilon");
  c.out["tie_word_embeddings"] = file.tensor("output.weight") == nullptr;
  c.out["dtype"] = weights_dtype(file);
  const bool has_experts = c.integer_of("expert_count").value_or(0) > 0;
  if (has_experts && c.out["model_type"] == "llama") c.out["model_type"] = "mixtral";
  else if (has_experts && !knows_gguf_experts(c.out["model_type"]))
    c.fail(unsupported("experts (\"expert_count\") of architecture \"" + std::string(architecture.name) +
                       "\" are not supported"));
  if (!has_own_gguf_ropes(architecture.model_type)) read_rope(c, *embedding);
  read_particulars(c);
  read_layer_particulars(c);
  read_encoder_particulars(c);
  for (const auto& [field, key] : {std::pair("bos_token_id", "tokenizer.ggml.bos_token_id"),
                                   std::pair("eos_token_id", "tokenizer.ggml.eos_token_id")})
    if (const auto id = file.integer(key)) c.out[field] = *id;
  if (!c.status.ok()) return c.status;
  return std::move(c.out);
}

Result<ModelConfig> load_gguf_config(const std::string& path) { return from_file(path, read_config); }
Result<GenerationConfig> load_gguf_generation_config(const std::string& path) {
  return from_file(path, read_generation_config);
}

}  // namespace llmb
