#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "model/architecture.h"
#include "model/architecture_readers.h"
#include "model/rope_config.h"

namespace llmb {

namespace {

constexpr int64_t kMaxExperts = 4096;

void read_experts(ConfigFields& f, const char* count_names, int64_t default_count, int64_t default_top_k,
                  const char* size_name, int64_t default_size, ModelConfig* c) {
  ExpertsConfig& e = c->experts;
  e.num_experts = static_cast<int32_t>(f.integer(f.pick(count_names).c_str(), default_count, 1, kMaxExperts));
  e.top_k = static_cast<int32_t>(f.integer("num_experts_per_tok", default_top_k, 1, e.num_experts));
  e.intermediate_size = static_cast<int32_t>(f.integer(size_name, default_size, 1, kMaxIntermediate));
}

}  // namespace

void read_mixtral(ConfigFields& f, ModelConfig* c) {
  read_experts(f, "num_local_experts|num_experts", 8, 2, "intermediate_size", 14336, c);
  for (LayerConfig& layer : layers_of(c)) layer.has_experts = true;
  c->ropes = {read_rope(f, {.theta = 1000000}, c)};
  read_window_of_all_layers(f, 0, c);
}

void read_qwen3_moe(ConfigFields& f, ModelConfig* c) {
  c->qkv_bias = c->o_bias = f.boolean("attention_bias", false);
  c->qk_norm = QkNorm::kPerHead;
  read_experts(f, "num_experts|num_local_experts", 128, 8, "moe_intermediate_size", 768, c);
  c->experts.norm_topk_prob = f.boolean("norm_topk_prob", false);
  const int64_t step = f.integer("decoder_sparse_step", 1, 1, INT32_MAX);
  const std::vector<TokenId> dense = f.token_ids("mlp_only_layers");
  std::vector<LayerConfig>& layers = layers_of(c);
  for (int32_t i = 0; i < c->num_hidden_layers; ++i)
    layers[i].has_experts = (i + 1) % step == 0 && std::find(dense.begin(), dense.end(), i) == dense.end();
  c->ropes = {read_rope(f, {}, c)};
  if (f.boolean("use_sliding_window", false)) read_window_of_all_layers(f, 4096, c);
}

void read_olmoe(ConfigFields& f, ModelConfig* c) {
  if (f.has("clip_qkv")) f.fail(unsupported("\"clip_qkv\" is not supported"));
  c->qkv_bias = c->o_bias = f.boolean("attention_bias", false);
  c->qk_norm = QkNorm::kAllHeads;
  read_experts(f, "num_experts|num_local_experts", 64, 8, "intermediate_size", 2048, c);
  c->experts.norm_topk_prob = f.boolean("norm_topk_prob", false);
  for (LayerConfig& layer : layers_of(c)) layer.has_experts = true;
  c->ropes = {read_rope(f, {}, c)};
}

void read_granitemoe(ConfigFields& f, ModelConfig* c) {
  read_granite(f, c);
  c->mlp_bias = false;
  read_experts(f, "num_local_experts|num_experts", 8, 2, "intermediate_size", 11008, c);
  for (LayerConfig& layer : layers_of(c)) layer.has_experts = true;
}

void read_gpt_oss(ConfigFields& f, ModelConfig* c) {
  c->qkv_bias = c->o_bias = f.boolean("attention_bias", true);
  c->attention_sinks = true;
  c->activation = {Activation::kClampedSwiglu, true, static_cast<float>(f.number("swiglu_alpha", 1.702, 1e-3, 1e3)),
                   static_cast<float>(f.number("swiglu_limit", 7, 1e-3, 1e6))};
  read_experts(f, "num_local_experts|num_experts", 128, 4, "intermediate_size", 2880, c);
  c->experts.bias = true;
  for (LayerConfig& layer : layers_of(c)) layer.has_experts = true;
  static const nlohmann::json kYarn = {{"rope_type", "yarn"}, {"factor", 32.0},
                                       {"beta_fast", 32.0},   {"beta_slow", 1.0},
                                       {"truncate", false},   {"original_max_position_embeddings", 4096}};
  const bool has_rope = f.has("rope_scaling") || f.has("rope_parameters");
  const double theta = f.number("rope_theta", 150000, 1, 1e12);
  c->ropes = {has_rope ? read_rope(f, {.theta = theta}, c)
                       : read_rope_object(f, kYarn, "rope_parameters", {.theta = theta}, c)};
  const std::vector<bool> sliding = read_sliding_layers(f, *c, [](int32_t i) { return i % 2 == 0; });
  if (!f.is_null("sliding_window")) set_windows(sliding, f.integer("sliding_window", 128, 1, INT64_MAX), c);
}

}  // namespace llmb
