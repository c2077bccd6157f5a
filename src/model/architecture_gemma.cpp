#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "model/architecture.h"
#include "model/architecture_readers.h"

namespace llmb {

namespace {

constexpr double kMaxScalar = 1e9;

// The fields that all generations share.
void read_common(ConfigFields& f, ModelConfig* c) {
  c->qkv_bias = c->o_bias = f.boolean("attention_bias", false);
  c->norm_weight_offset = 1;
  c->embedding_multiplier = std::sqrt(static_cast<double>(c->hidden_size));
}

// 0 where the file says null.
double read_softcap(ConfigFields& f, const char* name, double fallback) {
  return f.is_null(name) ? 0 : f.number(name, fallback, 1e-3, kMaxScalar);
}

void read_second_generation(ConfigFields& f, double attention_softcap, double logit_softcap, ModelConfig* c) {
  c->post_norm = true;
  c->attention_scale = 1 / std::sqrt(f.number("query_pre_attn_scalar", 256, 1e-6, kMaxScalar));
  c->attention_softcap = read_softcap(f, "attn_logit_softcapping", attention_softcap);
  c->logit_softcap = read_softcap(f, "final_logit_softcapping", logit_softcap);
}

}  // namespace

void read_gemma(ConfigFields& f, ModelConfig* c) {
  refuse_if_true(f, "use_bidirectional_attention");
  read_common(f, c);
  // The first files say "gelu" and mean the approximation.
  if (c->activation.kind == Activation::kGelu) c->activation.kind = Activation::kGeluTanh;
  c->ropes = {read_rope(f, {}, c)};
}

void read_gemma2(ConfigFields& f, ModelConfig* c) {
  refuse_if_true(f, "use_bidirectional_attention");
  read_common(f, c);
  read_second_generation(f, 50, 30, c);
  c->ropes = {read_rope(f, {}, c)};
  const std::vector<bool> sliding = read_sliding_layers(f, *c, [](int32_t i) { return i % 2 == 0; });
  if (!f.is_null("sliding_window")) set_windows(sliding, f.integer("sliding_window", 4096, 1, INT64_MAX), c);
}

void read_gemma3_text(ConfigFields& f, ModelConfig* c) {
  read_common(f, c);
  read_second_generation(f, 0, 0, c);
  c->qk_norm = QkNorm::kPerHead;
  read_ropes_by_type(f, {.theta = 1000000}, {.theta = 10000, .theta_name = "rope_local_base_freq"}, c);
  const int64_t pattern = f.integer("sliding_window_pattern", 6, 1, INT32_MAX);
  std::vector<bool> sliding = read_sliding_layers(f, *c, [](int32_t) { return true; });
  for (size_t i = 0; !f.has("layer_types") && i < sliding.size(); ++i)
    sliding[i] = (i + 1) % static_cast<size_t>(pattern) != 0;
  // EmbeddingGemma: a window of so many positions is half on either side.
  c->is_encoder = f.boolean("use_bidirectional_attention", false);
  if (c->is_encoder) return set_reach(sliding, f.integer("sliding_window", 4096, 2, INT32_MAX) / 2, c);
  std::vector<LayerConfig>& layers = layers_of(c);
  for (size_t i = 0; i < layers.size(); ++i) layers[i].rope = sliding[i] ? 1 : 0;
  if (!f.is_null("sliding_window")) set_windows(sliding, f.integer("sliding_window", 4096, 1, INT64_MAX), c);
}

}  // namespace llmb
