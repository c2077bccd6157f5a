// Gemma 4: layers that slide and layers that see everything have heads of different sizes, and the last layers attend
// to the keys and values of earlier ones.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "model/architecture.h"
#include "model/architecture_readers.h"

namespace llmb {

namespace {

// The sizes of a layer's heads where they are not the model's.
void set_heads(int64_t head_dim, int64_t num_kv_heads, const ModelConfig& c, LayerConfig* layer) {
  if (head_dim != c.head_dim) layer->head_dim = static_cast<int32_t>(head_dim);
  if (num_kv_heads != c.num_key_value_heads) layer->num_key_value_heads = static_cast<int32_t>(num_kv_heads);
}

// "per_layer_config", as newer files say it: {"5": {"head_dim": 512}, …}
void read_layer_overrides(ConfigFields& f, const nlohmann::json& by_layer, ModelConfig* c) {
  const auto wrong = [&](const std::string& what) { f.fail(unsupported("\"per_layer_config\": " + what)); };
  if (!by_layer.is_object()) return wrong("not an object");
  for (const auto& [key, overrides] : by_layer.items()) {
    int32_t index = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), index);
    if (error != std::errc() || end != key.data() + key.size() || index < 0 || index >= c->num_hidden_layers)
      return wrong("there is no layer \"" + key.substr(0, 60) + "\"");
    if (!overrides.is_object()) return wrong("layer " + key + " is not an object");
    for (const auto& [name, value] : overrides.items())
      if (name != "head_dim" && name != "num_key_value_heads")
        return wrong("\"" + name.substr(0, 60) + "\" of a layer; supported: head_dim, num_key_value_heads");
    ConfigFields fields(overrides);
    const int64_t head_dim = fields.integer("head_dim", c->head_dim, 2, kMaxHeadDim);
    set_heads(head_dim, fields.integer("num_key_value_heads", c->num_key_value_heads, 1, kMaxHeads), *c,
              &c->layers[index]);
    f.fail(fields.status().with_context("per_layer_config"));
  }
}

void read_layer_heads(ConfigFields& f, const std::vector<bool>& sliding, bool values_are_keys, ModelConfig* c) {
  if (const nlohmann::json* by_layer = f.find("per_layer_config"); by_layer != nullptr)
    return read_layer_overrides(f, *by_layer, c);
  const int64_t head_dim = f.integer("global_head_dim", 512, 2, kMaxHeadDim);
  // Files name a number of heads that only counts where keys are values.
  const int64_t num_kv_heads = values_are_keys
                                   ? f.integer("num_global_key_value_heads", c->num_key_value_heads, 1, kMaxHeads)
                                   : c->num_key_value_heads;
  for (size_t i = 0; i < sliding.size(); ++i)
    if (!sliding[i]) set_heads(head_dim, num_kv_heads, *c, &c->layers[i]);
}

// Layers of one type are rotated alike, and may share keys and values.
void check_layer_heads(ConfigFields& f, const std::vector<bool>& sliding, const ModelConfig& c) {
  for (int32_t i = 0; i < c.num_hidden_layers; ++i) {
    const int32_t heads = c.num_kv_heads_of(i), head_dim = c.head_dim_of(i);
    const auto first = static_cast<int32_t>(std::find(sliding.begin(), sliding.end(), sliding[i]) - sliding.begin());
    const std::string layer = "layer " + std::to_string(i) + ": ";
    if (head_dim % 2 != 0) f.fail(data_loss(layer + "head_dim " + std::to_string(head_dim) + " is odd"));
    if (c.num_attention_heads % heads != 0)
      f.fail(data_loss(layer + "\"num_attention_heads\" " + std::to_string(c.num_attention_heads) +
                       " is not a multiple of its KV heads, " + std::to_string(heads)));
    if (head_dim != c.head_dim_of(first) || heads != c.num_kv_heads_of(first))
      f.fail(unsupported(layer + "its heads differ from those of layer " + std::to_string(first) +
                         ", which is of the same type"));
  }
}

// The last layers attend to what the last layer of their type before them has.
void share_keys_and_values(ConfigFields& f, const std::vector<bool>& sliding, ModelConfig* c) {
  const int64_t num_shared = f.integer("num_kv_shared_layers", 0, 0, c->num_hidden_layers - 1);
  const bool is_wider = f.boolean("use_double_wide_mlp", false);
  if (!f.status().ok()) return;
  if (is_wider && c->intermediate_size > kMaxIntermediate / 2)
    return f.fail(data_loss("\"intermediate_size\" " + std::to_string(c->intermediate_size) +
                            " is too large for \"use_double_wide_mlp\""));
  const auto num_own = static_cast<int32_t>(c->num_hidden_layers - num_shared);
  for (int32_t i = num_own; i < c->num_hidden_layers; ++i) {
    int32_t source = num_own - 1;
    while (source >= 0 && sliding[source] != sliding[i]) --source;
    if (source < 0)
      return f.fail(data_loss("\"num_kv_shared_layers\" " + std::to_string(num_shared) +
                              " leaves no layer whose keys and values layer " + std::to_string(i) + " could use"));
    c->layers[i].kv_layer = source;
    if (is_wider) c->layers[i].intermediate_size = 2 * c->intermediate_size;
  }
}

void read_layer_inputs(ConfigFields& f, ModelConfig* c) {
  const bool has_any = c->model_type == "gemma4_text";
  c->hidden_size_per_layer_input =
      static_cast<int32_t>(f.integer("hidden_size_per_layer_input", has_any ? 256 : 0, 0, kMaxIntermediate));
  if (c->hidden_size_per_layer_input == 0) return;
  const int64_t vocab_size = f.integer("vocab_size_per_layer_input", 262144, 1, INT32_MAX);
  if (vocab_size < c->vocab_size)
    f.fail(data_loss("\"vocab_size_per_layer_input\" " + std::to_string(vocab_size) + " is below \"vocab_size\" " +
                     std::to_string(c->vocab_size)));
  c->vocab_size_per_layer_input = static_cast<int32_t>(vocab_size);
}

void read_ropes(ConfigFields& f, const std::vector<bool>& sliding, ModelConfig* c) {
  static const nlohmann::json kDefaults = {
      {"full_attention", {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.25}, {"rope_theta", 1e6}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}};
  const nlohmann::json* by_type = f.find("rope_parameters");
  if (by_type == nullptr) by_type = &kDefaults;
  c->ropes.clear();
  for (const auto& [type, slides] : {std::pair("full_attention", false), std::pair("sliding_attention", true)}) {
    const auto it = by_type->find(type);
    const nlohmann::json& object = it == by_type->end() ? kDefaults[type] : *it;
    if (!object.is_object())
      return f.fail(data_loss(std::string("rope_parameters: \"") + type + "\" is not an object"));
    RopeDefaults defaults;
    const auto layer = std::find(sliding.begin(), sliding.end(), slides);
    if (layer != sliding.end()) defaults.head_dim = c->head_dim_of(static_cast<int32_t>(layer - sliding.begin()));
    c->ropes.push_back(read_rope_object(f, object, type, defaults, c));
  }
}

}  // namespace

void read_gemma4(ConfigFields& f, ModelConfig* c) {
  if (const nlohmann::json* seen = f.find("use_bidirectional_attention"); seen != nullptr && *seen != "vision")
    f.fail(unsupported("\"use_bidirectional_attention\" " + brief(*seen) + " is not supported"));
  c->qkv_bias = c->o_bias = f.boolean("attention_bias", false);
  c->embedding_multiplier = std::sqrt(static_cast<double>(c->hidden_size));
  c->post_norm = c->value_norm = c->layer_scalars = true;
  c->qk_norm = QkNorm::kPerHead;
  c->attention_scale = 1;
  if (f.has("final_logit_softcapping")) c->logit_softcap = f.number("final_logit_softcapping", 0, 1e-3, 1e9);
  std::vector<bool> sliding = read_sliding_layers(f, *c, [](int32_t i) { return (i + 1) % 6 != 0; });
  sliding.back() = false;  // whatever the file says
  const bool values_are_keys = f.boolean("attention_k_eq_v", false);
  std::vector<LayerConfig>& layers = layers_of(c);
  for (size_t i = 0; i < layers.size(); ++i) {
    layers[i].rope = sliding[i] ? 1 : 0;
    layers[i].values_are_keys = values_are_keys && !sliding[i];
  }
  const int64_t window = c->model_type == "gemma4_text" ? 512 : 1024;
  set_windows(sliding, f.integer("sliding_window", window, 1, INT64_MAX), c);
  read_layer_heads(f, sliding, values_are_keys, c);
  read_layer_inputs(f, c);
  if (f.boolean("enable_moe_block", false)) read_gemma4_experts(f, c);
  if (f.status().ok()) check_layer_heads(f, sliding, *c);
  if (f.status().ok()) share_keys_and_values(f, sliding, c);
  if (f.status().ok()) read_ropes(f, sliding, c);
}

}  // namespace llmb
