#include <cmath>
#include <nlohmann/json.hpp>

#include "model/architecture.h"
#include "model/architecture_readers.h"
#include "model/rope_config.h"

namespace llmb {

namespace {

void read_attention_bias(ConfigFields& f, ModelConfig* c) {
  c->qkv_bias = c->o_bias = f.boolean("attention_bias", false);
}

// Qwen: a window for the upper layers, if the file turns it on.
void read_qwen_windows(ConfigFields& f, ModelConfig* c) {
  if (!f.boolean("use_sliding_window", false) || f.is_null("sliding_window")) return;
  const int64_t window = f.integer("sliding_window", 4096, 1, INT64_MAX);
  const int64_t first = f.integer("max_window_layers", 28, 0, INT32_MAX);
  const bool has_types = f.has("layer_types");
  std::vector<bool> sliding = read_sliding_layers(f, *c, [](int32_t) { return true; });
  for (int64_t i = 0; !has_types && i < std::min<int64_t>(first, c->num_hidden_layers); ++i) sliding[i] = false;
  set_windows(sliding, window, c);
}

}  // namespace

void read_llama(ConfigFields& f, ModelConfig* c) {
  read_attention_bias(f, c);
  c->mlp_bias = f.boolean("mlp_bias", false);
  c->ropes = {read_rope(f, {}, c)};
}

void read_mistral(ConfigFields& f, ModelConfig* c) {
  c->ropes = {read_rope(f, {}, c)};
  read_window_of_all_layers(f, 4096, c);
}

void read_qwen2(ConfigFields& f, ModelConfig* c) {
  c->qkv_bias = true;
  c->ropes = {read_rope(f, {}, c)};
  read_qwen_windows(f, c);
}

void read_qwen3(ConfigFields& f, ModelConfig* c) {
  read_attention_bias(f, c);
  c->qk_norm = QkNorm::kPerHead;
  c->ropes = {read_rope(f, {}, c)};
  read_qwen_windows(f, c);
}

// Every no_rope_layer_interval-th layer leaves q and k as they are; only those may see a window.
void read_smollm3(ConfigFields& f, ModelConfig* c) {
  read_llama(f, c);
  c->ropes = {read_rope(f, {.theta = 2000000}, c)};
  const int64_t interval = f.integer("no_rope_layer_interval", 4, 1, INT32_MAX);
  const nlohmann::json* list = f.find("no_rope_layers");
  if (list != nullptr && (!list->is_array() || list->size() < static_cast<size_t>(c->num_hidden_layers)))
    return f.fail(
        data_loss("\"no_rope_layers\" is not a list of " + std::to_string(c->num_hidden_layers) + " zeros and ones"));
  std::vector<LayerConfig>& layers = layers_of(c);
  for (size_t i = 0; i < layers.size(); ++i) {
    const bool has_rope = list != nullptr ? (*list)[i] != 0 : (i + 1) % static_cast<size_t>(interval) != 0;
    layers[i].rope = has_rope ? 0 : -1;
  }
  if (!f.boolean("use_sliding_window", false) || !f.has("sliding_window")) return;
  std::vector<bool> sliding = read_sliding_layers(f, *c, [](int32_t) { return true; });
  for (size_t i = 0; !f.has("layer_types") && i < sliding.size(); ++i) sliding[i] = layers[i].rope < 0;
  set_windows(sliding, f.integer("sliding_window", {}, 1, INT64_MAX), c);
}

void read_phi3(ConfigFields& f, ModelConfig* c) {
  c->ropes = {read_rope(f, {.partial_name = "partial_rotary_factor", .original_max_position_embeddings = 4096}, c)};
  read_window_of_all_layers(f, 0, c);
}

void read_granite(ConfigFields& f, ModelConfig* c) {
  read_llama(f, c);
  c->embedding_multiplier = f.number("embedding_multiplier", 1, 1e-9, 1e9);
  c->residual_multiplier = f.number("residual_multiplier", 1, 1e-9, 1e9);
  c->attention_scale = f.number("attention_multiplier", 1, 1e-9, 1e9);
  c->logit_multiplier = 1 / f.number("logits_scaling", 1, 1e-9, 1e9);
}

void read_olmo2(ConfigFields& f, ModelConfig* c) {
  read_attention_bias(f, c);
  c->pre_norm = false;
  c->post_norm = true;
  c->qk_norm = QkNorm::kAllHeads;
  c->ropes = {read_rope(f, {}, c)};
}

}  // namespace llmb
