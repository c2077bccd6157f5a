#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "model/architecture.h"
#include "model/architecture_readers.h"
#include "model/rope_config.h"

namespace llmb {

namespace {

// Every fourth layer, or as the file says, has attention, the others a state.
void read_state_layers(ConfigFields& f, ModelConfig* c) {
  std::vector<LayerConfig>& layers = layers_of(c);
  const int64_t interval = f.integer("full_attention_interval", 4, 1, INT32_MAX);
  for (size_t i = 0; i < layers.size(); ++i) layers[i].has_state = (i + 1) % static_cast<size_t>(interval) != 0;
  if (const nlohmann::json* types = f.find("layer_types"); types != nullptr) {
    if (!types->is_array() || types->size() != layers.size())
      return f.fail(data_loss("\"layer_types\" is not a list of " + std::to_string(layers.size()) + " layers' types"));
    for (size_t i = 0; i < layers.size(); ++i) {
      layers[i].has_state = (*types)[i] == "linear_attention";
      if (!layers[i].has_state && (*types)[i] != "full_attention")
        return f.fail(unsupported("\"layer_types\" holds other types than \"full_attention\" and \"linear_attention\""));
    }
  }
  const auto has_state = [](const LayerConfig& layer) { return layer.has_state; };
  if (std::all_of(layers.begin(), layers.end(), has_state))
    return f.fail(unsupported("no layer has attention: at least one must"));
  if (std::none_of(layers.begin(), layers.end(), has_state)) c->state = {};
}

}  // namespace

void read_states(ConfigFields& f, ModelConfig* c) {
  c->qkv_bias = c->o_bias = f.boolean("attention_bias", false);
  c->qk_norm = QkNorm::kPerHead;
  c->norm_weight_offset = 1;
  c->attention_gate = true;
  c->ropes = {read_rope(f, {.partial_rotary_factor = 0.25, .partial_name = "partial_rotary_factor"}, c)};
  const auto size = [&](const char* name, int64_t fallback, int64_t min, int64_t max) {
    return static_cast<int32_t>(f.integer(name, fallback, min, max));
  };
  StateConfig& s = c->state;
  s.num_key_heads = size("linear_num_key_heads", 16, 1, 4096);
  s.num_value_heads = size("linear_num_value_heads", 32, 1, 4096);
  s.key_dim = size("linear_key_head_dim", 128, 1, 256);
  s.value_dim = size("linear_value_head_dim", 128, 1, 1024);
  s.conv_width = size("linear_conv_kernel_dim", 4, 2, 64);
  if (s.num_value_heads % s.num_key_heads != 0)
    return f.fail(data_loss("\"linear_num_value_heads\" is not a multiple of \"linear_num_key_heads\""));
  read_state_layers(f, c);
}

void read_qwen3_5_text(ConfigFields& f, ModelConfig* c) { read_states(f, c); }

}  // namespace llmb
