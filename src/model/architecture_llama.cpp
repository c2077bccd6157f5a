#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "model/architecture.h"
#include "model/architecture_readers.h"
#include "model/rope_config.h"

namespace llmb {

namespace {

void read_attention_bias(ConfigFields& f, ModelConfig* c) {
  c->qkv_bias = c->o_bias = f.boolean("attention_bias", false);
}

// Behind attention and the MLP, and of q and k.
void set_olmo2_norms(ModelConfig* c) {
  c->pre_norm = false;
  c->post_norm = true;
  c->qk_norm = QkNorm::kAllHeads;
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

// The text part of models that see, some of whose files describe it beside the other parts.
void read_qwen2_vl(ConfigFields& f, ModelConfig* c) {
  read_qwen2(f, c);
  c->ropes = {read_rope(f, {.theta = 1000000}, c)};
}

void read_qwen3_vl_text(ConfigFields& f, ModelConfig* c) {
  read_qwen3(f, c);
  c->ropes = {read_rope(f, {.theta = 500000}, c)};
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

// Norms without weights, always with an epsilon of 1e-5.
void read_olmo(ConfigFields& f, ModelConfig* c) {
  read_attention_bias(f, c);
  c->norm = NormKind::kLayer;
  c->qkv_clip = f.number("clip_qkv", 0, 0, 1e9);
  c->ropes = {read_rope(f, {}, c)};
}

void read_olmo2(ConfigFields& f, ModelConfig* c) {
  read_attention_bias(f, c);
  set_olmo2_norms(c);
  c->ropes = {read_rope(f, {}, c)};
}

// Three layers that slide to one that sees everything, which alone has its rope scaled.
void read_olmo3(ConfigFields& f, ModelConfig* c) {
  read_attention_bias(f, c);
  set_olmo2_norms(c);
  read_ropes_by_type(f, {.theta = 500000}, {.theta = 500000}, c);
  const std::vector<bool> sliding = read_sliding_layers(f, *c, [](int32_t i) { return (i + 1) % 4 != 0; });
  std::vector<LayerConfig>& layers = layers_of(c);
  for (size_t i = 0; i < layers.size(); ++i) layers[i].rope = sliding[i] ? 1 : 0;
  if (!f.is_null("sliding_window")) set_windows(sliding, f.integer("sliding_window", 4096, 1, INT64_MAX), c);
}

// Norms as OLMo 2, of q and k for each head. Where there are windows, only layers with one are rotated.
void read_exaone4(ConfigFields& f, ModelConfig* c) {
  c->pre_norm = false;
  c->post_norm = true;
  c->qk_norm = QkNorm::kPerHead;
  c->ropes = {read_rope(f, {}, c)};
  if (f.is_null("sliding_window")) return;
  std::vector<bool> sliding = read_sliding_layers(f, *c, [](int32_t) { return true; });
  const nlohmann::json* pattern = f.find("sliding_window_pattern");
  if (!f.has("layer_types")) {  // "LLLG", or how many layers there are to one that sees everything
    const bool is_text = pattern != nullptr && pattern->is_string() && !pattern->get<std::string>().empty();
    const std::string kinds = is_text ? pattern->get<std::string>() : "";
    const auto step = is_text ? 1 : static_cast<size_t>(f.integer("sliding_window_pattern", 4, 1, INT32_MAX));
    for (size_t i = 0; i < sliding.size(); ++i)
      sliding[i] = is_text ? kinds[i % kinds.size()] == 'L' : (i + 1) % step != 0;
  }
  std::vector<LayerConfig>& layers = layers_of(c);
  for (size_t i = 0; i < layers.size(); ++i) layers[i].rope = sliding[i] ? 0 : -1;
  set_windows(sliding, f.integer("sliding_window", 4096, 1, INT64_MAX), c);
}

void read_ministral(ConfigFields& f, ModelConfig* c) {
  c->ropes = {read_rope(f, {}, c)};
  const std::vector<bool> sliding = read_sliding_layers(f, *c, [](int32_t) { return true; });
  if (!f.is_null("sliding_window")) set_windows(sliding, f.integer("sliding_window", 4096, 1, INT64_MAX), c);
}

// Queries grow from the position on that rope was trained up to, which is not computed: the model is used for the positions
// before, as a GGUF file of it is.
void read_ministral3(ConfigFields& f, ModelConfig* c) {
  c->ropes = {read_rope(f, {.theta = 1000000}, c)};
  read_window_of_all_layers(f, 0, c);
  const std::string where = f.pick("rope_scaling|rope_parameters");
  const nlohmann::json* rope = f.find(where.c_str());
  if (rope == nullptr || !rope->is_object()) return f.fail(data_loss("\"rope_parameters\" is missing"));
  ConfigFields fields(*rope);
  const bool grows = fields.number("llama_4_scaling_beta", 0.1, 0, 1e3) != 0;
  const int64_t trained = fields.integer("original_max_position_embeddings", 16384, 1, kMaxPositions);
  f.fail(fields.status().with_context(where));
  if (grows) c->max_position_embeddings = static_cast<int32_t>(std::min<int64_t>(c->max_position_embeddings, trained));
}

void read_glm(ConfigFields& f, ModelConfig* c) {
  c->qkv_bias = f.boolean("attention_bias", true);
  c->ropes = {read_rope(f, {.partial_rotary_factor = 0.5, .partial_name = "partial_rotary_factor"}, c)};
}

void read_glm4(ConfigFields& f, ModelConfig* c) {
  read_glm(f, c);
  c->post_norm = true;
}

void read_ernie4_5(ConfigFields& f, ModelConfig* c) {
  c->qkv_bias = c->o_bias = c->mlp_bias = f.boolean("use_bias", false);
  c->ropes = {read_rope(f, {.theta = 500000}, c)};
}

// The norms of q and k come behind the rotation. "alpha" stretches theta once and for all.
void read_hunyuan_v1_dense(ConfigFields& f, ModelConfig* c) {
  read_attention_bias(f, c);
  c->qk_norm = QkNorm::kRotatedPerHead;
  refuse_if_true(f, "use_cla");
  const std::string where = f.pick("rope_scaling|rope_parameters");
  const nlohmann::json* scaling = f.find(where.c_str());
  const bool has_alpha = scaling != nullptr && scaling->is_object() && scaling->contains("alpha");
  if (!has_alpha) {
    c->ropes = {read_rope(f, {}, c)};
  } else {
    ConfigFields rope(*scaling);
    const double theta = rope.number("rope_theta", f.number("rope_theta", 10000, 1, 1e12), 1, 1e12);
    const double alpha = rope.number("alpha", 1, 1e-3, 1e9), d = c->head_dim;
    f.fail(rope.status().with_context(where));
    c->ropes = {{.theta = theta * std::pow(alpha, d / std::max(d - 2, 1.0))}};
  }
  if (c->ropes[0].scaling.attention_factor != 1)
    f.fail(unsupported("rope scaling with an attention factor is not supported for this architecture"));
}

void read_helium(ConfigFields& f, ModelConfig* c) {
  c->qkv_bias = f.boolean("attention_bias", false);
  c->mlp_bias = f.boolean("mlp_bias", false);
  c->ropes = {read_rope(f, {.theta = 100000}, c)};
}

void read_seed_oss(ConfigFields& f, ModelConfig* c) {
  c->qkv_bias = f.boolean("attention_bias", true);
  c->o_bias = f.boolean("attention_out_bias", false);
  c->mlp_bias = f.boolean("mlp_bias", false);
  c->ropes = {read_rope(f, {}, c)};
}

void read_internlm2(ConfigFields& f, ModelConfig* c) {
  c->qkv_bias = c->o_bias = f.boolean("bias", true);
  c->ropes = {read_rope(f, {}, c)};
}

}  // namespace llmb
