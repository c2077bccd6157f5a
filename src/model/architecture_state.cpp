#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "model/architecture.h"
#include "model/architecture_readers.h"
#include "model/rope_config.h"

namespace llmb {

namespace {

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

}  // namespace

// Every fourth layer, or as the file says, has attention, whose output is gated.
void read_gated_delta(ConfigFields& f, ModelConfig* c) {
  c->qkv_bias = c->o_bias = f.boolean("attention_bias", false);
  c->qk_norm = QkNorm::kPerHead;
  c->norm_weight_offset = 1;
  c->attention_gate = true;
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
  if (const nlohmann::json* limit = f.find("time_step_limit"); limit != nullptr && limit->is_array()) {
    const bool is_open =
        limit->size() == 2 && (*limit)[0] == 0 && (!(*limit)[1].is_number() || std::isinf((*limit)[1].get<double>()));
    if (!is_open) f.fail(unsupported("\"time_step_limit\" other than from 0 to infinity is not supported"));
  }
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

}  // namespace llmb
