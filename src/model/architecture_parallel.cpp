#include <string>

#include "model/architecture.h"
#include "model/architecture_readers.h"
#include "model/rope_config.h"

namespace llmb {

namespace {

// LayerNorm, and one of it for attention and the MLP side by side.
void set_parallel(ModelConfig* c, bool norm_bias) {
  c->norm = NormKind::kLayer;
  c->norm_bias = norm_bias;
  c->residual = ResidualKind::kParallelSharedNorm;
}

// GPT-J and CodeGen rotate the first rotary_dim channels of each head.
void read_rotary_dim(ConfigFields& f, ModelConfig* c) {
  const int64_t dim = f.integer("rotary_dim", 64, 2, c->head_dim);
  if (dim % 2 != 0) f.fail(data_loss("\"rotary_dim\" " + std::to_string(dim) + " is not an even number"));
  c->ropes = {{.rotary_dim = static_cast<int32_t>(dim)}};
}

}  // namespace

void read_cohere(ConfigFields& f, ModelConfig* c) {
  set_parallel(c, false);
  if (f.boolean("use_qk_norm", false)) c->qk_norm = QkNorm::kLayerPerHead;
  c->qkv_bias = c->o_bias = f.boolean("attention_bias", false);
  c->logit_multiplier = f.number("logit_scale", 0.0625, 1e-9, 1e9);
  c->ropes = {read_rope(f, {.theta = 500000}, c)};
}

// Three layers that slide to one that sees everything, which is not rotated.
void read_cohere2(ConfigFields& f, ModelConfig* c) {
  refuse_if_true(f, "use_qk_norm");
  read_cohere(f, c);
  c->ropes = {read_rope(f, {}, c)};
  const int64_t pattern = f.integer("sliding_window_pattern", 4, 1, INT32_MAX);
  std::vector<bool> sliding = read_sliding_layers(f, *c, [](int32_t) { return true; });
  for (size_t i = 0; !f.has("layer_types") && i < sliding.size(); ++i)
    sliding[i] = (i + 1) % static_cast<size_t>(pattern) != 0;
  const bool has_window = !f.is_null("sliding_window");
  std::vector<LayerConfig>& layers = layers_of(c);
  for (size_t i = 0; i < layers.size(); ++i) layers[i].rope = has_window && sliding[i] ? 0 : -1;
  if (has_window) set_windows(sliding, f.integer("sliding_window", 4096, 1, INT64_MAX), c);
}

void read_stablelm(ConfigFields& f, ModelConfig* c) {
  set_parallel(c, true);
  if (f.boolean("qk_layernorm", false)) c->qk_norm = QkNorm::kLayerPerHead;
  if (!f.boolean("use_parallel_residual", false)) c->residual = ResidualKind::kSequential;
  c->qkv_bias = f.boolean("use_qkv_bias", false);
  const char* name = f.has("rope_pct") ? "rope_pct" : "partial_rotary_factor";
  c->ropes = {read_rope(f, {.partial_rotary_factor = 0.25, .partial_name = name}, c)};
}

void read_phi(ConfigFields& f, ModelConfig* c) {
  set_parallel(c, true);
  if (f.boolean("qk_layernorm", false)) c->qk_norm = QkNorm::kLayerPerHead;
  c->qkv_bias = c->o_bias = c->mlp_bias = true;
  c->ropes = {read_rope(f, {.partial_rotary_factor = 0.5, .partial_name = "partial_rotary_factor"}, c)};
}

void read_gptj(ConfigFields& f, ModelConfig* c) {
  set_parallel(c, true);
  c->mlp_bias = true;
  read_rotary_dim(f, c);
}

void read_codegen(ConfigFields& f, ModelConfig* c) {
  read_gptj(f, c);
  if (c->num_attention_heads % 4 != 0)
    f.fail(data_loss("\"n_head\" " + std::to_string(c->num_attention_heads) + " is not a multiple of 4"));
}

}  // namespace llmb
