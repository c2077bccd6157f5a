#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "model/architecture.h"
#include "model/architecture_readers.h"
#include "model/rope_config.h"

namespace llmb {

namespace {

constexpr int64_t kMaxExperts = 4096;

void read_experts(ConfigFields& f, const char* count_names, std::optional<int64_t> default_count,
                  std::optional<int64_t> default_top_k, const char* size_name, std::optional<int64_t> default_size,
                  ModelConfig* c,
                  const char* top_k_names = "num_experts_per_tok") {
  ExpertsConfig& e = c->experts;
  e.num_experts = static_cast<int32_t>(f.integer(f.pick(count_names).c_str(), default_count, 1, kMaxExperts));
  e.top_k = static_cast<int32_t>(f.integer(f.pick(top_k_names).c_str(), default_top_k, 1, e.num_experts));
  e.intermediate_size = static_cast<int32_t>(f.integer(size_name, default_size, 1, kMaxIntermediate));
}

// An expert that all tokens go through, as large as `count` of `size`.
void set_shared_expert(ConfigFields& f, int64_t count, int64_t size, ModelConfig* c) {
  if (count * size > kMaxIntermediate) f.fail(data_loss("the shared experts are too large"));
  else c->experts.shared_intermediate_size = static_cast<int32_t>(count * size);
}

// Every `step`-th layer, but for those that "mlp_only_layers" lists.
void read_sparse_layers(ConfigFields& f, ModelConfig* c) {
  const int64_t step = f.integer("decoder_sparse_step", 1, 1, INT32_MAX);
  const std::vector<TokenId> dense = f.token_ids("mlp_only_layers");
  std::vector<LayerConfig>& layers = layers_of(c);
  for (int32_t i = 0; i < c->num_hidden_layers; ++i)
    layers[i].has_experts = (i + 1) % step == 0 && std::find(dense.begin(), dense.end(), i) == dense.end();
}

// An integer, or a list of one integer for each layer, all alike.
int64_t read_alike(ConfigFields& f, const char* name, int64_t fallback, int64_t max) {
  const nlohmann::json* list = f.find(name);
  if (list == nullptr || !list->is_array() || list->empty()) return f.integer(name, fallback, 1, max);
  for (const nlohmann::json& item : *list)
    if (item != list->front())
      f.fail(unsupported(std::string("\"") + name + "\" that differs by layer is not supported"));
  const nlohmann::json one = {{name, list->front()}};
  ConfigFields fields(one);
  const int64_t value = fields.integer(name, fallback, 1, max);
  f.fail(fields.status());
  return value;
}

}  // namespace

void read_grouped_experts(ConfigFields& f, const GroupedDefaults& d, ModelConfig* c) {
  read_experts(f, "n_routed_experts|num_local_experts|num_experts", d.num_experts, d.top_k, "moe_intermediate_size",
               d.intermediate_size, c);
  ExpertsConfig& e = c->experts;
  e.scores = ExpertScores::kLogistic;
  e.choice_bias = true;
  e.norm_topk_prob = f.boolean("norm_topk_prob", d.norm_topk_prob);
  e.weight_scale = f.number("routed_scaling_factor", d.weight_scale, 1e-9, 1e9);
  e.num_groups = static_cast<int32_t>(f.integer("n_group", d.num_groups, 1, e.num_experts));
  e.top_groups = static_cast<int32_t>(f.integer("topk_group", d.top_groups, 1, e.num_groups));
  if (e.num_experts % e.num_groups != 0)
    return f.fail(
        data_loss("\"n_routed_experts\" " + std::to_string(e.num_experts) + " is not a multiple of \"n_group\""));
  if (e.top_k > e.num_experts / e.num_groups * e.top_groups)
    return f.fail(data_loss("\"num_experts_per_tok\" is more than the experts of \"topk_group\" groups"));
  set_shared_expert(f, f.integer("n_shared_experts", d.num_shared, 0, kMaxExperts), e.intermediate_size, c);
  const int64_t first = f.integer("first_k_dense_replace", d.num_dense_layers, 0, INT32_MAX);
  const nlohmann::json* types = f.find("mlp_layer_types");
  std::vector<LayerConfig>& layers = layers_of(c);
  if (types != nullptr && (!types->is_array() || types->size() != layers.size()))
    return f.fail(data_loss("\"mlp_layer_types\" is not a list of the layers' types"));
  for (size_t i = 0; i < layers.size(); ++i)
    layers[i].has_experts = types != nullptr ? (*types)[i] == "sparse" : static_cast<int64_t>(i) >= first;
}

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
  read_sparse_layers(f, c);
  c->ropes = {read_rope(f, {}, c)};
  if (f.boolean("use_sliding_window", false)) read_window_of_all_layers(f, 4096, c);
}

// The text part of models that see. Weights always sum to 1, whatever the file says.
void read_qwen3_vl_moe_text(ConfigFields& f, ModelConfig* c) {
  read_qwen3_moe(f, c);
  c->experts.norm_topk_prob = true;
  c->ropes = {read_rope(f, {.theta = 500000}, c)};
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
  c->experts.shared_intermediate_size =
      static_cast<int32_t>(f.integer("shared_intermediate_size", 0, 0, kMaxIntermediate));
  for (LayerConfig& layer : layers_of(c)) layer.has_experts = true;
}

void read_granitemoehybrid(ConfigFields& f, ModelConfig* c) {
  read_granite(f, c);
  c->mlp_bias = false;
  if (f.text("position_embedding_type", "") != "rope") c->ropes.clear();
  read_mamba2(f, c);
  const auto shared = static_cast<int32_t>(f.integer("shared_intermediate_size", 1024, 1, kMaxIntermediate));
  if (f.integer("num_local_experts", 8, 0, kMaxExperts) == 0) {
    c->intermediate_size = shared;
    return;
  }
  read_experts(f, "num_local_experts", 8, 2, "intermediate_size", 11008, c);
  c->experts.shared_intermediate_size = shared;
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

void read_qwen2_moe(ConfigFields& f, ModelConfig* c) {
  c->qkv_bias = f.boolean("qkv_bias", true);
  c->ropes = {read_rope(f, {}, c)};
  read_experts(f, "num_experts|num_local_experts", 60, 4, "moe_intermediate_size", 1408, c);
  c->experts.norm_topk_prob = f.boolean("norm_topk_prob", false);
  set_shared_expert(f, 1, f.integer("shared_expert_intermediate_size", 5632, 1, kMaxIntermediate), c);
  c->experts.shared_gate = true;
  read_sparse_layers(f, c);
  if (!f.boolean("use_sliding_window", false) || f.is_null("sliding_window")) return;
  const int64_t last = f.integer("max_window_layers", 28, 0, INT32_MAX);
  std::vector<bool> sliding = read_sliding_layers(f, *c, [](int32_t i) { return i % 2 == 0; });
  for (int64_t i = last; !f.has("layer_types") && i < c->num_hidden_layers; ++i) sliding[i] = false;
  set_windows(sliding, f.integer("sliding_window", 4096, 1, INT64_MAX), c);
}

void read_qwen3_next(ConfigFields& f, ModelConfig* c) {
  read_gated_delta(f, c);
  read_experts(f, "num_experts|num_local_experts", 512, 10, "moe_intermediate_size", 512, c);
  c->experts.norm_topk_prob = f.boolean("norm_topk_prob", true);
  set_shared_expert(f, 1, f.integer("shared_expert_intermediate_size", 512, 1, kMaxIntermediate), c);
  c->experts.shared_gate = c->mtp.layer.has_experts = true;
  read_sparse_layers(f, c);
}

void read_qwen3_5_moe_text(ConfigFields& f, ModelConfig* c) {
  read_gated_delta(f, c);
  read_experts(f, "num_experts|num_local_experts", 256, 8, "moe_intermediate_size", 512, c);
  set_shared_expert(f, 1, f.integer("shared_expert_intermediate_size", 512, 1, kMaxIntermediate), c);
  c->experts.shared_gate = c->mtp.layer.has_experts = true;
  for (LayerConfig& layer : layers_of(c)) layer.has_experts = true;
}

void read_gemma4_experts(ConfigFields& f, ModelConfig* c) {
  read_experts(f, "num_experts", {}, {}, "moe_intermediate_size", {}, c, "top_k_experts");
  c->experts.beside_dense = true;
  for (LayerConfig& layer : layers_of(c)) layer.has_experts = true;
}

// Experts are chosen by logistic scores and a bias, of the best groups (DeepSeek-V3, arXiv:2412.19437, section 2.1.2).
void read_glm4_moe(ConfigFields& f, ModelConfig* c) {
  c->qkv_bias = f.boolean("attention_bias", false);
  if (f.boolean("use_qk_norm", false)) c->qk_norm = QkNorm::kPerHead;
  c->mtp.is_known = c->mtp.layer.has_experts = true;
  c->ropes = {read_rope(f, {.partial_rotary_factor = 0.5, .partial_name = "partial_rotary_factor"}, c)};
  read_grouped_experts(f, {.num_dense_layers = 1}, c);
}

void read_dots1(ConfigFields& f, ModelConfig* c) {
  read_qwen3(f, c);
  read_grouped_experts(f, {.norm_topk_prob = false}, c);
  if (f.is_null("sliding_window")) return;
  const int64_t first = f.integer("max_window_layers", 62, 0, INT32_MAX);
  std::vector<bool> sliding = read_sliding_layers(f, *c, [](int32_t) { return true; });
  for (int64_t i = 0; !f.has("layer_types") && i < c->num_hidden_layers; ++i) sliding[i] = i >= first;
  set_windows(sliding, f.integer("sliding_window", 4096, 1, INT64_MAX), c);
}

// A bias decides with the softmax which experts a token gets.
void read_ernie4_5_moe(ConfigFields& f, ModelConfig* c) {
  refuse_if_true(f, "use_bias");  // its head would have one, too
  read_ernie4_5(f, c);
  read_experts(f, "moe_num_experts|num_experts", 64, 6, "moe_intermediate_size", 1536, c, "moe_k|num_experts_per_tok");
  c->experts.choice_bias = true;
  set_shared_expert(f, f.integer("moe_num_shared_experts", 2, 0, kMaxExperts), c->experts.intermediate_size, c);
  const int64_t first = f.integer("moe_layer_start_index", 1, 0, INT32_MAX);
  const int64_t last = f.integer("moe_layer_end_index", -1, -1, INT32_MAX);
  const int64_t step = f.integer("moe_layer_interval", 1, 1, INT32_MAX);
  std::vector<LayerConfig>& layers = layers_of(c);
  for (int64_t i = 0; i < c->num_hidden_layers; ++i)
    layers[i].has_experts = (i + 1) % step == 0 && i >= first && (last < 0 || i <= last);
}

void read_hunyuan_v1_moe(ConfigFields& f, ModelConfig* c) {
  read_hunyuan_v1_dense(f, c);
  ExpertsConfig& e = c->experts;
  e.num_experts = static_cast<int32_t>(read_alike(f, "num_experts", 1, kMaxExperts));
  e.top_k = static_cast<int32_t>(read_alike(f, f.pick("moe_topk|num_experts_per_tok").c_str(), 1, e.num_experts));
  e.intermediate_size = c->intermediate_size;
  set_shared_expert(f, 1, c->intermediate_size, c);
  for (LayerConfig& layer : layers_of(c)) layer.has_experts = true;
}

// Layers that are rotated see chunks of the text. Their q and k are normalised behind the rotation, which is the same
// as in front of it. The others see everything, and their q grows with its position.
void read_llama4_text(ConfigFields& f, ModelConfig* c) {
  c->qkv_bias = c->o_bias = f.boolean("attention_bias", false);
  if (f.boolean("use_qk_norm", true)) c->qk_norm = QkNorm::kWeightless;
  c->ropes = {read_rope(f, {.theta = 500000}, c)};
  read_experts(f, "num_local_experts", 16, 1, "intermediate_size", 8192, c);
  c->experts.scores = ExpertScores::kLogistic;
  c->experts.norm_topk_prob = false;
  c->experts.weighs_input = true;
  set_shared_expert(f, 1, c->experts.intermediate_size, c);
  const int64_t step = f.integer("interleave_moe_layer_step", 1, 1, INT32_MAX);
  const std::vector<TokenId> sparse = f.token_ids("moe_layers");
  const int64_t interval = f.integer("no_rope_layer_interval", 4, 1, INT32_MAX);
  const nlohmann::json* rotated = f.find("no_rope_layers");
  if (rotated != nullptr && rotated->is_array() && rotated->empty()) rotated = nullptr;
  if (rotated != nullptr && (!rotated->is_array() || rotated->size() < static_cast<size_t>(c->num_hidden_layers)))
    return f.fail(data_loss("\"no_rope_layers\" is not a list of zeros and ones for all layers"));
  const bool has_chunks = !f.is_null("attention_chunk_size");
  const int64_t chunk = f.integer("attention_chunk_size", 8192, 1, INT64_MAX);
  const nlohmann::json* types = f.find("layer_types");
  std::vector<LayerConfig>& layers = layers_of(c);
  for (int64_t i = 0; i < c->num_hidden_layers; ++i) {
    const auto at = static_cast<size_t>(i);
    layers[at].has_experts =
        f.has("moe_layers") ? std::find(sparse.begin(), sparse.end(), i) != sparse.end() : (i + 1) % step == 0;
    layers[at].rope = (rotated != nullptr ? (*rotated)[at] != 0 : (i + 1) % interval != 0) ? 0 : -1;
    const bool is_chunked = types != nullptr && types->is_array() && types->size() > at
                                ? (*types)[at] == "chunked_attention"
                                : layers[at].rope == 0;
    if (is_chunked && has_chunks && chunk < c->max_position_embeddings) layers[at].chunk = static_cast<int32_t>(chunk);
  }
  const nlohmann::json* tuning = f.find("attn_temperature_tuning");  // a number in the first files
  const int64_t floor = f.integer("floor_scale", 8192, 1, INT32_MAX);
  if ((tuning != nullptr && (*tuning == false || *tuning == 0)) || floor > c->max_position_embeddings) return;
  c->query_growth = {f.number("attn_scale", 0.1, 0, 1e3), static_cast<int32_t>(floor)};
}

}  // namespace llmb
