// Models whose layers are of several kinds as a GGUF file describes them: attention among layers with a state, and
// Gemma 4, whose layers' heads differ.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/config_fields.h"
#include "model/gguf_config_json.h"
#include "model/gguf_dequantise.h"

namespace llmb {

namespace {

using nlohmann::json;

std::string block_key(int64_t index, const char* name) { return "blk." + std::to_string(index) + "." + name; }

// Whether a layer, and which, has such a tensor; -1: none.
int64_t first_with(const GgufConfigJson& c, int64_t num_layers, const char* tensor) {
  for (int64_t i = 0; i < num_layers; ++i)
    if (c.has(block_key(i, tensor).c_str())) return i;
  return -1;
}

// How long a value head of a state is. 0 after an error.
int64_t value_dim(GgufConfigJson& c) {
  const int64_t inner = c.integer_of("ssm.inner_size").value_or(0),
                heads = c.integer_of("ssm.time_step_rank").value_or(0);
  if (inner > 0 && heads > 0 && inner % heads == 0) return inner / heads;
  c.fail(data_loss("\"ssm.inner_size\" " + std::to_string(inner) + " is not a multiple of \"ssm.time_step_rank\" " +
                   std::to_string(heads)));
  return 0;
}

void read_delta_values(GgufConfigJson& c) {
  json& out = c.out;
  const int64_t layers = count_layers(c);
  if (layers == 0) return;
  c.integer("linear_num_key_heads", "ssm.group_count");
  c.integer("linear_num_value_heads", "ssm.time_step_rank");
  c.integer("linear_key_head_dim", "ssm.state_size");
  c.integer("linear_conv_kernel_dim", "ssm.conv_kernel");
  out["linear_value_head_dim"] = value_dim(c);
  for (const char* key : {"ssm.group_count", "ssm.state_size", "ssm.conv_kernel"})
    if (!c.integer_of(key)) return c.fail(data_loss(std::string("\"") + key + "\" is missing"));
  out["attention_bias"] = false;
  if (!out.contains("partial_rotary_factor")) out["partial_rotary_factor"] = 1.0;
  out["full_attention_interval"] = c.integer_of("full_attention_interval").value_or(4);
  if (const std::vector<int64_t> states = c.of_layers("attention.recurrent_layers", layers); !states.empty()) {
    json types = json::array();
    for (int64_t i = 0; i < layers; ++i) types.push_back(states[i] != 0 ? "linear_attention" : "full_attention");
    out["layer_types"] = std::move(types);
  }
  if (out["model_type"] == "qwen3_5_text") return;
  c.integer("num_experts", "expert_count");
  c.integer("num_experts_per_tok", "expert_used_count");
  c.integer("moe_intermediate_size", "expert_feed_forward_length");
  c.integer("shared_expert_intermediate_size", "expert_shared_feed_forward_length");
  out["norm_topk_prob"] = c.boolean_of("expert_weights_norm").value_or(true);
  json dense = json::array();
  for (int64_t i = 0; i < layers; ++i)
    if (!c.has(block_key(i, "ffn_gate_inp.weight").c_str())) dense.push_back(i);
  out["mlp_only_layers"] = std::move(dense);
}

// Layers without KV heads have a state. REQUIRES: `heads` has one number for each layer.
json types_by_heads(const std::vector<int64_t>& heads, int64_t layers, const char* state, const char* attention) {
  json types = json::array();
  for (int64_t i = 0; i < layers; ++i) types.push_back(heads[i] == 0 ? state : attention);
  return types;
}

void read_lfm2_values(GgufConfigJson& c) {
  json& out = c.out;
  const int64_t layers = count_layers(c);
  const std::vector<int64_t> heads = c.of_layers("attention.head_count_kv", layers);
  if (heads.empty()) return;
  out["layer_types"] = types_by_heads(heads, layers, "conv", "full_attention");
  c.number("norm_eps", "attention.layer_norm_rms_epsilon");
  c.integer("conv_L_cache", "shortconv.l_cache");
  if (!out.contains("conv_L_cache")) c.fail(data_loss("\"shortconv.l_cache\" is missing"));
  out["conv_bias"] = first_with(c, layers, "shortconv.conv.bias") >= 0;
  out["block_auto_adjust_ff_dim"] = false;  // the size is what came of that
  if (c.integer_of("attention.sliding_window").value_or(0) > 0)
    c.fail(unsupported("\"attention.sliding_window\" of architecture \"lfm2\" is not supported"));
  if (c.boolean_of("attention.causal") == false)
    c.fail(unsupported("an LFM2 whose tokens see those behind them (\"attention.causal\" false) is not supported"));
}

// The numbers of Mamba-2 layers under the names that their architecture gives them.
struct Mamba2Fields {
  const char *heads, *groups, *state, *width, *bias;
};
void read_mamba2_values(GgufConfigJson& c, int64_t layers, const Mamba2Fields& fields) {
  c.integer(fields.heads, "ssm.time_step_rank");
  c.integer(fields.groups, "ssm.group_count");
  c.integer(fields.state, "ssm.state_size");
  c.integer(fields.width, "ssm.conv_kernel");
  for (const char* key : {"ssm.group_count", "ssm.state_size", "ssm.conv_kernel"})
    if (!c.integer_of(key)) return c.fail(data_loss(std::string("\"") + key + "\" is missing"));
  c.out[fields.bias] = first_with(c, layers, "ssm_conv1d.bias") >= 0;
}

void read_granite_values(GgufConfigJson& c) {
  json& out = c.out;
  const int64_t layers = count_layers(c), hidden = out.value("hidden_size", int64_t{0});
  const std::vector<int64_t> heads = c.of_layers("attention.head_count_kv", layers);
  if (heads.empty()) return;
  c.number("logits_scaling", "logit_scale");
  c.number("embedding_multiplier", "embedding_scale");
  c.number("residual_multiplier", "residual_scale");
  c.number("attention_multiplier", "attention.scale");
  out["layer_types"] = types_by_heads(heads, layers, "mamba", "attention");
  read_mamba2_values(c, layers,
                     {"mamba_n_heads", "mamba_n_groups", "mamba_d_state", "mamba_d_conv", "mamba_conv_bias"});
  const int64_t inner = value_dim(c) * c.integer_of("ssm.time_step_rank").value_or(0);
  if (!c.status.ok()) return;
  if (hidden < 1 || inner % hidden != 0)
    return c.fail(unsupported("\"ssm.inner_size\" " + std::to_string(inner) +
                              " is not a multiple of \"embedding_length\" " + std::to_string(hidden)));
  out["mamba_expand"] = inner / hidden;
  out["position_embedding_type"] = c.boolean_of("rope.scaling.finetuned").value_or(true) ? "rope" : "nope";
  const int64_t experts = c.integer_of("expert_count").value_or(0);
  out["num_local_experts"] = experts;
  c.integer("num_experts_per_tok", "expert_used_count");
  if (experts > 0) c.integer("shared_intermediate_size", "expert_shared_feed_forward_length");
  else if (out.contains("intermediate_size")) out["shared_intermediate_size"] = out["intermediate_size"];
}

// Each layer is a state, attention, or an MLP. Rows of q and k are in the order of rotated pairs, of which nothing
// follows without rotation.
void read_nemotron_h_values(GgufConfigJson& c) {
  json& out = c.out;
  const int64_t layers = count_layers(c);
  const std::vector<int64_t> heads = c.of_layers("attention.head_count_kv", layers);
  if (heads.empty()) return;
  const int64_t experts = c.integer_of("expert_count").value_or(0);
  json types = json::array();
  for (int64_t i = 0; i < layers; ++i)
    types.push_back(heads[i] > 0                                         ? "attention"
                    : c.has(block_key(i, "ffn_gate_inp.weight").c_str()) ? "moe"
                    : c.has(block_key(i, "ffn_up.weight").c_str())       ? "mlp"
                                                                         : "mamba");
  out["layers_block_type"] = std::move(types);
  c.number("layer_norm_epsilon", "attention.layer_norm_epsilon");
  c.number("layer_norm_epsilon", "attention.layer_norm_rms_epsilon");
  read_mamba2_values(c, layers, {"mamba_num_heads", "n_groups", "ssm_state_size", "conv_kernel", "use_conv_bias"});
  out["mamba_head_dim"] = value_dim(c);
  out["mlp_bias"] = first_with(c, layers, "ffn_up.bias") >= 0 || first_with(c, layers, "ffn_up_shexp.bias") >= 0;
  if (first_with(c, layers, "ffn_gate_inp.weight") < 0) return;
  if (c.integer_of("moe_latent_size").value_or(0) > 0)
    return c.fail(unsupported("\"moe_latent_size\" is not supported"));
  out["n_routed_experts"] = experts;
  c.integer("num_experts_per_tok", "expert_used_count");
  c.integer("moe_intermediate_size", "expert_feed_forward_length");
  c.integer("moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length");
  c.integer("n_shared_experts", "expert_shared_count");
  out["norm_topk_prob"] = c.boolean_of("expert_weights_norm").value_or(true);
  c.number("routed_scaling_factor", "expert_weights_scale");
  out["n_group"] = c.integer_of("expert_group_count").value_or(1);
  out["topk_group"] = c.integer_of("expert_group_used_count").value_or(1);
}

// The share of a head's pairs that turn, in layers that see everything: the others' angles are divided by 1e30.
double read_rotated_share(GgufConfigJson& c, int64_t head_dim) {
  const GgufTensor* factors = c.file().tensor("rope_freqs.weight");
  if (factors == nullptr) return 1;
  const int64_t pairs = head_dim / 2;
  if (pairs < 1 || pairs > kMaxHeadDim || factors->shape.size() != 1 || factors->cols() != pairs ||
      std::string_view(factors->type->name) != "F32") {
    c.fail(data_loss("tensor \"rope_freqs.weight\" is not " + std::to_string(pairs) + " F32 numbers"));
    return 1;
  }
  std::vector<float> values(static_cast<size_t>(pairs));
  dequantise_row(*factors->type, factors->data.data(), pairs, values.data());
  const auto first = std::find_if(values.begin(), values.end(), [](float v) { return v != 1; });
  if (!std::all_of(first, values.end(), [](float v) { return v >= 1e29f; }))
    c.fail(unsupported("\"rope_freqs.weight\" holds other factors than 1 and 1e30; they are not supported"));
  // A quarter more than so many, which no rounding takes below.
  const auto turned = static_cast<double>(first - values.begin());
  return std::min(1.0, (turned + (first == values.end() ? 0 : 0.25)) / static_cast<double>(pairs));
}

void read_gemma4_expert_values(GgufConfigJson& c) {
  if (c.integer_of("expert_count").value_or(0) == 0) return;
  c.out["enable_moe_block"] = true;
  c.integer("num_experts", "expert_count");
  c.integer("top_k_experts", "expert_used_count");
  c.integer("moe_intermediate_size", "expert_feed_forward_length");
}

void read_gemma4_values(GgufConfigJson& c) {
  json& out = c.out;
  const int64_t layers = count_layers(c);
  const std::vector<int64_t> slides = c.of_layers("attention.sliding_window_pattern", layers),
                             heads = c.of_layers("attention.head_count_kv", layers),
                             sizes = c.of_layers("feed_forward_length", layers);
  for (const auto& [key, values] :
       {std::pair("attention.sliding_window_pattern", &slides), std::pair("attention.head_count_kv", &heads),
        std::pair("feed_forward_length", &sizes)})
    if (values->empty()) return c.fail(data_loss(std::string("\"gemma4.") + key + "\" is missing"));
  json types = json::array();
  int64_t full = -1, sliding = -1;  // a layer of each type
  for (int64_t i = 0; i < layers; ++i) {
    types.push_back(slides[i] != 0 ? "sliding_attention" : "full_attention");
    int64_t& first = slides[i] != 0 ? sliding : full;
    if (first < 0) first = i;
    if (heads[i] != heads[first])
      return c.fail(unsupported("\"gemma4.attention.head_count_kv\" differs in layers of one type"));
  }
  if (slides[layers - 1] != 0)
    return c.fail(unsupported("the last layer of a Gemma 4 sees everything; here it slides"));
  out["layer_types"] = std::move(types);
  c.integer("sliding_window", "attention.sliding_window");
  c.integer("head_dim", sliding < 0 ? "attention.key_length" : "attention.key_length_swa");
  c.integer("global_head_dim", "attention.key_length");
  for (const char* name : {"head_dim", "global_head_dim"})
    if (!out.contains(name))
      return c.fail(data_loss(std::string("\"") + name + "\" (attention.key_length) is missing"));
  out["num_key_value_heads"] = heads[sliding < 0 ? full : sliding];
  out["num_global_key_value_heads"] = heads[full];
  const int64_t shared = c.integer_of("attention.shared_kv_layers").value_or(0);
  out["num_kv_shared_layers"] = shared;
  out["attention_k_eq_v"] = !c.has(block_key(full, "attn_v.weight").c_str());
  out["attention_bias"] = first_with(c, layers, "attn_q.bias") >= 0;
  out["intermediate_size"] = sizes[0];
  if (sizes[0] < 1 || sizes[0] > kMaxIntermediate)
    return c.fail(
        data_loss("\"intermediate_size\" (feed_forward_length) " + std::to_string(sizes[0]) + " is out of range"));
  const bool is_wider = sizes[layers - 1] != sizes[0];
  const int64_t num_own = layers - std::clamp<int64_t>(shared, 0, layers);
  out["use_double_wide_mlp"] = is_wider;
  for (int64_t i = 0; i < layers; ++i)
    if (sizes[i] != (is_wider && i >= num_own ? 2 * sizes[0] : sizes[0]))
      return c.fail(
          unsupported("\"gemma4.feed_forward_length\" differs in layers otherwise than twice as wide where "
                      "keys and values are shared"));
  const GgufTensor* inputs = c.file().tensor("per_layer_token_embd.weight");
  out["hidden_size_per_layer_input"] = c.integer_of("embedding_length_per_layer_input").value_or(0);
  if (inputs != nullptr && !inputs->shape.empty()) out["vocab_size_per_layer_input"] = inputs->shape[0];
  c.number("final_logit_softcapping", "final_logit_softcapping");
  read_gemma4_expert_values(c);
  json rope_full = {{"rope_type", "proportional"},
                    {"partial_rotary_factor", read_rotated_share(c, out["global_head_dim"].get<int64_t>())}};
  json rope_sliding = {{"rope_type", "default"}, {"rope_theta", 10000.0}};
  c.number("rope_theta", "rope.freq_base", &rope_full);
  c.number("rope_theta", "rope.freq_base_swa", &rope_sliding);
  if (!rope_full.contains("rope_theta")) rope_full["rope_theta"] = 1e6;
  out["rope_parameters"] = {{"full_attention", std::move(rope_full)}, {"sliding_attention", std::move(rope_sliding)}};
}

constexpr struct {
  const char* model_type;
  bool has_unlike_layers, has_own_ropes;
  void (*read)(GgufConfigJson&);
} kReaders[] = {
    {"qwen3_5_text", false, false, read_delta_values},      {"qwen3_5_moe_text", false, false, read_delta_values},
    {"qwen3_next", false, false, read_delta_values},        {"lfm2", true, false, read_lfm2_values},
    {"granitemoehybrid", true, false, read_granite_values}, {"nemotron_h", true, true, read_nemotron_h_values},
    {"gemma4_text", true, true, read_gemma4_values}};

}  // namespace

std::vector<int64_t> GgufConfigJson::of_layers(const char* key, int64_t count) {
  const GgufValue* value = file_.find(prefix_ + key);
  if (value == nullptr) return {};
  const bool is_flag = value->type == GgufValueType::kBool;
  const bool is_number = is_flag || is_gguf_integer(value->type);
  if (!is_number ||
      (value->is_array && (value->count < static_cast<uint64_t>(count) || value->count > kMaxGgufBlocks)) ||
      count < 1) {
    fail(data_loss("\"" + prefix_ + key + "\" is not a number for each of " + std::to_string(count) + " layers"));
    return {};
  }
  std::vector<int64_t> values;
  for (int64_t i = 0; i < (value->is_array ? static_cast<int64_t>(value->count) : count); ++i) {
    const auto at = static_cast<uint64_t>(value->is_array ? i : 0);
    values.push_back(is_flag ? value->bytes[at] != 0 : gguf_integer(*value, at));
  }
  return values;
}

bool has_unlike_gguf_layers(const std::string& model_type) {
  return std::any_of(std::begin(kReaders), std::end(kReaders),
                     [&](const auto& r) { return r.has_unlike_layers && model_type == r.model_type; });
}

bool has_own_gguf_ropes(const std::string& model_type) {
  return std::any_of(std::begin(kReaders), std::end(kReaders),
                     [&](const auto& r) { return r.has_own_ropes && model_type == r.model_type; });
}

void read_layer_particulars(GgufConfigJson& c) {
  const std::string type = c.out["model_type"];
  for (const auto& reader : kReaders)
    if (type == reader.model_type) reader.read(c);
}

}  // namespace llmb
