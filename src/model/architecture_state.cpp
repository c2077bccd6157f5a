#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/architecture.h"
#include "model/architecture_readers.h"
#include "model/rope_config.h"

namespace llmb {

namespace {

constexpr size_t kMaxBlocks = 1024;

// "layer_types", whose `state` types ("a|b") have a state and the others attention. Without it `has_state` says.
void read_state_layers(ConfigFields& f, const std::string& state, const std::function<bool(int64_t)>& has_state,
                       ModelConfig* c) {
  std::vector<LayerConfig>& layers = layers_of(c);
  for (size_t i = 0; i < layers.size(); ++i) layers[i].has_state = has_state(static_cast<int64_t>(i));
  if (const nlohmann::json* types = f.find("layer_types"); types != nullptr) {
    if (!types->is_array() || types->size() != layers.size())
      return f.fail(data_loss("\"layer_types\" is not a list of " + std::to_string(layers.size()) + " layers' types"));
    for (size_t i = 0; i < layers.size(); ++i) {
      const nlohmann::json& type = (*types)[i];
      const std::string name = type.is_string() ? type.get<std::string>() : "";
      layers[i].has_state = !name.empty() && ("|" + state + "|").find("|" + name + "|") != std::string::npos;
      if (!layers[i].has_state && name != "full_attention" && name != "attention")
        return f.fail(unsupported("\"layer_types\" holds other types than attention and \"" +
                                  state.substr(0, state.find('|')) + "\""));
    }
  }
  const auto is_state = [](const LayerConfig& layer) { return layer.has_state; };
  if (std::all_of(layers.begin(), layers.end(), is_state))
    return f.fail(unsupported("no layer has attention: at least one must"));
  if (std::none_of(layers.begin(), layers.end(), is_state)) c->state = {};
}

int32_t size(ConfigFields& f, const char* name, int64_t fallback, int64_t min, int64_t max) {
  return static_cast<int32_t>(f.integer(name, fallback, min, max));
}

// Steps that are bounded are refused.
void require_open_steps(ConfigFields& f) {
  const nlohmann::json* limit = f.find("time_step_limit");
  if (limit == nullptr || !limit->is_array()) return;
  const bool is_open =
      limit->size() == 2 && (*limit)[0] == 0 && (!(*limit)[1].is_number() || std::isinf((*limit)[1].get<double>()));
  if (!is_open) f.fail(unsupported("\"time_step_limit\" other than from 0 to infinity is not supported"));
}

// The kinds of a Nemotron-H's layers: a list of names, or a text with a letter for each. Empty after an error.
std::vector<std::string> read_block_types(ConfigFields& f) {
  static const std::map<std::string, std::string> kKinds = {
      {"M", "mamba"},     {"linear_attention", "mamba"},   {"mamba", "mamba"},
      {"*", "attention"}, {"full_attention", "attention"}, {"attention", "attention"},
      {"E", "moe"},       {"moe", "moe"},                  {"-", "mlp"},
      {"mlp", "mlp"}};
  std::vector<std::string> names, types;
  const nlohmann::json* list = f.find(f.pick("layers_block_type|layer_types").c_str());
  const std::string pattern = list == nullptr ? f.text("hybrid_override_pattern", "") : "";
  for (const char letter : pattern) names.emplace_back(1, letter);
  if (list != nullptr && list->is_array())
    for (const nlohmann::json& name : *list) names.push_back(name.is_string() ? name.get<std::string>() : "");
  for (const std::string& name : names)
    if (const auto kind = kKinds.find(name); kind != kKinds.end()) types.push_back(kind->second);
  if (!types.empty() && types.size() == names.size() && types.size() <= kMaxBlocks) return types;
  f.fail(
      data_loss("\"layers_block_type\" or \"hybrid_override_pattern\" must say of each layer which of Mamba, attention, "
                "MLP and experts it is"));
  return {};
}

}  // namespace

// Every fourth layer, or as the file says, has attention, whose output is gated.
void read_gated_delta(ConfigFields& f, ModelConfig* c) {
  c->qkv_bias = c->o_bias = f.boolean("attention_bias", false);
  c->qk_norm = QkNorm::kPerHead;
  c->norm_weight_offset = 1;
  c->attention_gate = true;
  c->mtp.is_known = true;
  c->ropes = {read_rope(f, {.partial_rotary_factor = 0.25, .partial_name = "partial_rotary_factor"}, c)};
  StateConfig& s = c->state;
  s.kind = StateKind::kGatedDelta;
  s.num_key_heads = size(f, "linear_num_key_heads", 16, 1, 4096);
  s.num_value_heads = size(f, "linear_num_value_heads", 32, 1, 4096);
  s.key_dim = size(f, "linear_key_head_dim", 128, 1, 256);
  s.value_dim = size(f, "linear_value_head_dim", 128, 1, 1024);
  s.conv_width = size(f, "linear_conv_kernel_dim", 4, 2, 64);
  if (s.num_value_heads % s.num_key_heads != 0)
    return f.fail(data_loss("\"linear_num_value_heads\" is not a multiple of \"linear_num_key_heads\""));
  const int64_t interval = f.integer("full_attention_interval", 4, 1, INT32_MAX);
  read_state_layers(
      f, "linear_attention", [&](int64_t i) { return (i + 1) % interval != 0; }, c);
}

void read_qwen3_5_text(ConfigFields& f, ModelConfig* c) { read_gated_delta(f, c); }

void read_mamba2(ConfigFields& f, ModelConfig* c) {
  StateConfig& s = c->state;
  s.kind = StateKind::kMamba2;
  s.num_value_heads = size(f, "mamba_n_heads", 128, 1, 65536);
  s.num_key_heads = s.num_norms = size(f, "mamba_n_groups", 1, 1, s.num_value_heads);
  s.key_dim = size(f, "mamba_d_state", 256, 1, 256);
  s.conv_width = size(f, "mamba_d_conv", 4, 2, 64);
  s.conv_bias = f.boolean("mamba_conv_bias", true);
  const int64_t inner = f.integer("mamba_expand", 2, 1, 64) * c->hidden_size;
  if (inner % s.num_value_heads != 0 || s.num_value_heads % s.num_key_heads != 0)
    return f.fail(
        data_loss("\"mamba_n_heads\" does not divide \"mamba_expand\" times \"hidden_size\", or is not a "
                  "multiple of \"mamba_n_groups\""));
  s.value_dim = static_cast<int32_t>(inner / s.num_value_heads);
  refuse_if_true(f, "mamba_proj_bias");
  require_open_steps(f);
  read_state_layers(
      f, "mamba|linear_attention", [](int64_t) { return true; }, c);
}

// The MLP's size is derived from the file's, unless that is turned off.
void read_lfm2(ConfigFields& f, ModelConfig* c) {
  c->qk_norm = QkNorm::kPerHead;
  c->ropes = {read_rope(f, {.theta = 1000000}, c)};
  c->tie_word_embeddings = f.boolean("tie_embedding", c->tie_word_embeddings);
  refuse_if_true(f, "conv_bias");
  if (f.boolean("block_auto_adjust_ff_dim", true)) {
    const double factor = f.number("block_ffn_dim_multiplier", 1, 1e-3, 1e3);
    const int64_t multiple = f.integer("block_multiple_of", 256, 1, 1 << 20);
    const auto wanted = static_cast<int64_t>(factor * static_cast<double>(2 * int64_t{c->intermediate_size} / 3));
    c->intermediate_size = static_cast<int32_t>(std::min<int64_t>(ceil_div(wanted, multiple) * multiple, INT32_MAX));
    if (c->intermediate_size < 1) return f.fail(data_loss("the MLP has no size"));
  }
  c->state = {StateKind::kShortConv, 0, 1, 0, c->hidden_size, size(f, "conv_L_cache", 3, 2, 64)};
  const std::vector<TokenId> attention = f.token_ids("full_attn_idxs");
  const auto has_attention = [&](int64_t i) {
    return !f.has("full_attn_idxs") || std::find(attention.begin(), attention.end(), i) != attention.end();
  };
  read_state_layers(
      f, "conv", [&](int64_t i) { return !has_attention(i); }, c);
}

// Each layer is a mixer or an MLP alone; attention has no positions. Steps have no lower bound, as in NVIDIA's own code.
void read_nemotron_h(ConfigFields& f, ModelConfig* c) {
  const std::vector<std::string> types = read_block_types(f);
  c->num_hidden_layers = static_cast<int32_t>(types.size());
  c->ropes.clear();
  c->mlp_bias = f.boolean("mlp_bias", false);
  for (const char* name : {"attention_bias", "use_bias", "mamba_proj_bias"}) refuse_if_true(f, name);
  if (f.has("moe_latent_size")) f.fail(unsupported("\"moe_latent_size\" is not supported"));
  if (const std::string act = f.text("mamba_hidden_act", "silu"); act != "silu")
    f.fail(unsupported("\"mamba_hidden_act\" other than \"silu\" is not supported"));
  StateConfig& s = c->state;
  s.kind = StateKind::kMamba2;
  s.num_value_heads = size(f, "mamba_num_heads", 128, 1, 65536);
  s.value_dim = size(f, "mamba_head_dim", 64, 1, 1024);
  s.num_key_heads = s.num_norms = size(f, f.pick("n_groups|mamba_n_groups").c_str(), 8, 1, s.num_value_heads);
  s.key_dim = size(f, "ssm_state_size", 128, 1, 256);
  s.conv_width = size(f, f.pick("conv_kernel|mamba_d_conv").c_str(), 4, 2, 64);
  s.conv_bias = f.boolean(f.pick("use_conv_bias|mamba_conv_bias").c_str(), true);
  require_open_steps(f);
  if (!f.status().ok()) return;
  if (s.num_value_heads % s.num_key_heads != 0)
    return f.fail(data_loss("\"mamba_num_heads\" is not a multiple of \"n_groups\""));
  const auto is = [&](const char* type) { return std::find(types.begin(), types.end(), type) != types.end(); };
  if (!is("attention")) return f.fail(unsupported("no layer has attention: at least one must"));
  if (!is("mamba")) s = {};
  if (is("moe")) {
    read_grouped_experts(f, {.num_experts = 8, .top_k = 2, .intermediate_size = 7688}, c);
    c->experts.shared_intermediate_size =
        size(f, "moe_shared_expert_intermediate_size", 7688, 1, kMaxIntermediate);
  }
  std::vector<LayerConfig>& layers = layers_of(c);
  for (size_t i = 0; i < layers.size() && f.status().ok(); ++i) {
    layers[i].has_state = types[i] == "mamba";
    layers[i].has_mixer = types[i] == "mamba" || types[i] == "attention";
    layers[i].has_mlp = !layers[i].has_mixer;
    layers[i].has_experts = types[i] == "moe";
  }
}

}  // namespace llmb
