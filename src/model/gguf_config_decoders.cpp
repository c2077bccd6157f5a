// Single architectures of plain decoders: their values in a GGUF file, beyond those that all of them have.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "model/gguf_config_json.h"

namespace llmb {

namespace {

using nlohmann::json;

bool has_qkv_bias(const GgufConfigJson& c) { return c.has("blk.0.attn_q.bias") || c.has("blk.0.attn_qkv.bias"); }

// Where an epsilon is of LayerNorms, and by which name.
void read_layer_norm_eps(GgufConfigJson& c, const char* field) { c.number(field, "attention.layer_norm_epsilon"); }

// Readers of these assume something else than whole heads where the field is absent.
void say_rotated_part(GgufConfigJson& c) {
  c.out["partial_rotary_factor"] = c.out.value("partial_rotary_factor", 1.0);
}

// "layer_types": the file says it layer by layer, or how many layers there are to one that sees everything. No
// window, no types.
void read_layer_windows(GgufConfigJson& c, int64_t period, std::optional<int64_t> window_if_silent = {}) {
  json& out = c.out;
  out["sliding_window"] = json();
  const auto window = c.integer_of("attention.sliding_window");
  const int64_t size = window.value_or(window_if_silent.value_or(0));
  const int64_t num_layers = out.value("num_hidden_layers", int64_t{0});
  if (size == 0 || num_layers < 1 || num_layers > kMaxGgufBlocks) return;  // the number of layers is judged later
  out["sliding_window"] = size;
  const char* const key = "attention.sliding_window_pattern";
  const GgufValue* pattern = c.find(key);
  const bool is_list = pattern != nullptr && pattern->is_array && pattern->type == GgufValueType::kBool;
  if (is_list && pattern->count < static_cast<uint64_t>(num_layers))
    return c.fail(data_loss("\"" + std::string(key) + "\" does not name a kind for each layer"));
  if (!is_list) period = c.integer_of(key).value_or(period);
  if (period < 1) return c.fail(data_loss("\"" + std::string(key) + "\" is out of range"));
  json types = json::array();
  for (int64_t i = 0; i < num_layers; ++i) {
    const bool slides = is_list ? pattern->bytes[static_cast<size_t>(i)] != 0 : (i + 1) % period != 0;
    types.push_back(slides ? "sliding_attention" : "full_attention");
  }
  out["layer_types"] = std::move(types);
}

// Only layers that see everything have their rope scaled.
void read_olmo2_values(GgufConfigJson& c) {
  if (c.integer_of("attention.sliding_window").value_or(0) == 0) return;
  json& out = c.out;
  out["model_type"] = "olmo3";
  read_layer_windows(c, 4);
  const double theta = out.value("rope_theta", 10000.0);
  json full = out.value("rope_scaling", json::object()), sliding = {{"rope_theta", theta}};
  full["rope_theta"] = theta;
  c.number("rope_theta", "rope.freq_base_swa", &sliding);
  out.erase("rope_scaling");
  out["rope_parameters"] = {{"full_attention", std::move(full)}, {"sliding_attention", std::move(sliding)}};
}

// Ministral 3's queries grow from the position on that rope was trained up to, which is not computed: the model is used
// for the positions before.
void read_mistral3_values(GgufConfigJson& c) {
  json& out = c.out;
  out["sliding_window"] = json();
  if (out.contains("rope_scaling")) {
    json& rope = out["rope_scaling"];
    if (const auto multiplier = c.number_of("rope.scaling.yarn_log_multiplier"); multiplier && *multiplier != 0)
      rope["mscale"] = 1.0, rope["mscale_all_dim"] = *multiplier;
  }
  if (c.number_of("attention.temperature_scale").value_or(0) == 0) return;
  const int64_t trained = c.integer_of("rope.scaling.original_context_length").value_or(0);
  if (trained < 1)
    return c.fail(data_loss("\"attention.temperature_scale\" needs a \"rope.scaling.original_context_length\""));
  out["max_position_embeddings"] = std::min(out.value("max_position_embeddings", trained), trained);
}

void read_cohere_values(GgufConfigJson& c) {
  json& out = c.out;
  read_layer_norm_eps(c, "layer_norm_eps");
  out["logit_scale"] = 1.0;
  c.number("logit_scale", "logit_scale");
  out["attention_bias"] = has_qkv_bias(c);
  if (out["model_type"] == "cohere2") {
    read_layer_windows(c, 4);
    if (out["sliding_window"].is_null()) c.fail(data_loss("\"attention.sliding_window\" is missing"));
    return;
  }
  out["use_qk_norm"] = c.has("blk.0.attn_q_norm.weight");
}

void read_glm_values(GgufConfigJson& c) {
  say_rotated_part(c);
  count_layers(c);
  c.out["attention_bias"] = has_qkv_bias(c);
}

void read_exaone4_values(GgufConfigJson& c) {
  count_layers(c);
  // The first files of the 32B model do not say that it has windows.
  const bool is_32b = c.out.value("num_hidden_layers", int64_t{0}) == 64;
  read_layer_windows(c, 4, is_32b ? std::optional<int64_t>(4096) : std::nullopt);
}

void read_ernie4_5_values(GgufConfigJson& c) {
  json& out = c.out;
  out["use_bias"] = has_qkv_bias(c);
  if (out["model_type"] == "ernie4_5") return;
  c.integer("moe_num_experts", "expert_count");
  c.integer("moe_k", "expert_used_count");
  c.integer("moe_intermediate_size", "expert_feed_forward_length");
  out["moe_num_shared_experts"] = c.integer_of("expert_shared_count").value_or(0);
  out["moe_layer_start_index"] = c.integer_of("leading_dense_block_count").value_or(0);
  out["moe_layer_interval"] = c.integer_of("interleave_moe_layer_step").value_or(1);
}

void read_stablelm_values(GgufConfigJson& c) {
  json& out = c.out;
  read_layer_norm_eps(c, "layer_norm_eps");
  say_rotated_part(c);
  out["use_parallel_residual"] = !c.has("blk.0.ffn_norm.weight");
  out["qk_layernorm"] = c.has("blk.0.attn_q_norm.weight");
  out["use_qkv_bias"] = has_qkv_bias(c);
}

void read_phi_values(GgufConfigJson& c) {
  read_layer_norm_eps(c, "layer_norm_eps");
  say_rotated_part(c);
}

void read_nemotron_values(GgufConfigJson& c) {
  read_layer_norm_eps(c, "norm_eps");
  say_rotated_part(c);
  c.out["attention_bias"] = has_qkv_bias(c);
  c.out["mlp_bias"] = c.has("blk.0.ffn_up.bias");
}

void read_olmo_values(GgufConfigJson& c) { c.number("clip_qkv", "attention.clamp_kqv"); }

void read_arcee_values(GgufConfigJson& c) {
  c.out["attention_bias"] = has_qkv_bias(c);
  c.out["mlp_bias"] = c.has("blk.0.ffn_up.bias");
}

void read_starcoder_values(GgufConfigJson& c) {
  read_layer_norm_eps(c, "layer_norm_epsilon");
  c.integer("n_inner", "feed_forward_length");
  c.out["multi_query"] = c.integer_of("attention.head_count_kv").value_or(1) == 1;
}

void read_olmoe_values(GgufConfigJson& c) {
  c.integer("num_experts", "expert_count");
  c.integer("num_experts_per_tok", "expert_used_count");
  c.out["norm_topk_prob"] = c.boolean_of("expert_weights_norm").value_or(false);
  c.out["attention_bias"] = has_qkv_bias(c);
}

void read_granitemoe_values(GgufConfigJson& c) {
  c.integer("num_local_experts", "expert_count");
  c.integer("num_experts_per_tok", "expert_used_count");
  c.integer("shared_intermediate_size", "expert_shared_feed_forward_length");
  c.out["attention_bias"] = has_qkv_bias(c);
}

void read_hunyuan_values(GgufConfigJson& c) {
  json& out = c.out;
  out["attention_bias"] = has_qkv_bias(c);
  if (out["model_type"] == "hunyuan_v1_dense") return;
  c.integer("num_experts", "expert_count");
  c.integer("moe_topk", "expert_used_count");
  const int64_t size = out.value("intermediate_size", int64_t{0});
  for (const char* key : {"expert_feed_forward_length", "expert_shared_feed_forward_length"})
    if (c.integer_of(key).value_or(size) != size)
      c.fail(unsupported("\"" + std::string(key) + "\" other than \"feed_forward_length\" is not supported"));
}

// Chunks and the growth of queries are those of the published models: no key says them.
void read_llama4_values(GgufConfigJson& c) {
  json& out = c.out;
  out["intermediate_size_mlp"] = out.value("intermediate_size", int64_t{0});
  c.integer("intermediate_size", "expert_feed_forward_length");
  c.integer("num_local_experts", "expert_count");
  c.integer("num_experts_per_tok", "expert_used_count");
  c.integer("interleave_moe_layer_step", "interleave_moe_layer_step");
  out["use_qk_norm"] = c.integer_of("expert_count").value_or(0) != 128;  // Maverick has none
  out["attention_bias"] = has_qkv_bias(c);
  if (c.integer_of("attention.sliding_window").value_or(8192) != 8192)
    c.fail(unsupported("\"attention.sliding_window\" other than 8192 is not supported for this architecture"));
}

void read_dots1_values(GgufConfigJson& c) {
  c.out["sliding_window"] = json();
  c.out["attention_bias"] = has_qkv_bias(c);
}

struct DecoderReader {
  const char* architecture;
  void (*read)(GgufConfigJson&);
};
constexpr DecoderReader kDecoderReaders[] = {
    {"arcee", read_arcee_values},
    {"chatglm", read_glm_values},
    {"cohere2", read_cohere_values},
    {"command-r", read_cohere_values},
    {"dots1", read_dots1_values},
    {"ernie4_5", read_ernie4_5_values},
    {"ernie4_5-moe", read_ernie4_5_values},
    {"exaone4", read_exaone4_values},
    {"glm4", read_glm_values},
    {"granitemoe", read_granitemoe_values},
    {"hunyuan-dense", read_hunyuan_values},
    {"hunyuan-moe", read_hunyuan_values},
    {"llama4", read_llama4_values},
    {"mistral3", read_mistral3_values},
    {"nemotron", read_nemotron_values},
    {"olmo", read_olmo_values},
    {"olmo2", read_olmo2_values},
    {"olmoe", read_olmoe_values},
    {"phi2", read_phi_values},
    {"stablelm", read_stablelm_values},
    {"starcoder", read_starcoder_values},
};

}  // namespace

void read_decoder_particulars(GgufConfigJson& c) {
  for (const DecoderReader& reader : kDecoderReaders) {
    if (c.architecture() != reader.architecture) continue;
    const int64_t heads = c.out.value("num_attention_heads", int64_t{0}), hidden = c.out.value("hidden_size", int64_t{0});
    if (!c.out.contains("head_dim") && heads > 0 && hidden % heads == 0) c.out["head_dim"] = hidden / heads;
    reader.read(c);
  }
}

}  // namespace llmb
