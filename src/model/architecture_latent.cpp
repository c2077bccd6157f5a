#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "model/architecture.h"
#include "model/architecture_readers.h"
#include "model/rope_config.h"

namespace llmb {

namespace {

struct LatentDefaults {
  int64_t query_rank = 1536;
  int64_t key_dim = 128, value_dim = 128;
  double theta = 10000;
};

// Yarn makes scores larger than attention_factor alone says, by the square of this.
double score_factor(ConfigFields& f, const RopeScaling& scaling) {
  const std::string where = f.pick("rope_scaling|rope_parameters");
  const nlohmann::json* object = f.find(where.c_str());
  if (scaling.kind == RopeScalingKind::kNone || object == nullptr || !object->is_object()) return 1;
  ConfigFields rope(*object);
  const double all_dim = rope.number("mscale_all_dim", 0, 0, 1e3);
  f.fail(rope.status().with_context(where));
  return scaling.factor <= 1 ? 1 : 0.1 * all_dim * std::log(scaling.factor) + 1;
}

void read_latent(ConfigFields& f, const LatentDefaults& d, ModelConfig* c) {
  if (f.has("index_topk") || f.has("index_n_heads"))
    return f.fail(unsupported("attention that an indexer makes sparse (\"index_topk\") is not supported"));
  LatentConfig& l = c->latent;
  const auto size = [&](const char* name, int64_t fallback) {
    return static_cast<int32_t>(f.integer(name, fallback, 1, kMaxIntermediate));
  };
  l.rank = size("kv_lora_rank", 512);
  l.rope_dim = size("qk_rope_head_dim", 64);
  l.key_dim = size("qk_nope_head_dim", d.key_dim);
  l.value_dim = size("v_head_dim", d.value_dim);
  l.query_rank = f.is_null("q_lora_rank") ? 0 : size("q_lora_rank", d.query_rank);
  l.is_interleaved = f.boolean("rope_interleave", true);
  const int64_t dim = int64_t{l.rank} + l.rope_dim;
  if (l.rope_dim % 2 != 0 || dim % 2 != 0 || dim > kMaxHeadDim)
    return f.fail(data_loss("\"qk_rope_head_dim\" " + std::to_string(l.rope_dim) + " and \"kv_lora_rank\" " +
                            std::to_string(l.rank) + " are not even numbers of together at most " +
                            std::to_string(kMaxHeadDim)));
  c->num_key_value_heads = 1;
  c->head_dim = static_cast<int32_t>(dim);
  c->qkv_bias = c->o_bias = f.boolean("attention_bias", false);
  c->ropes = {read_rope(f, {.theta = d.theta, .head_dim = l.rope_dim}, c)};
  const double factor = score_factor(f, c->ropes[0].scaling);
  c->attention_scale = factor * factor / std::sqrt(static_cast<double>(l.query_dim()));
}

// Only files that say so have experts in some layers alone.
void refuse_other_steps(ConfigFields& f) {
  if (f.integer("moe_layer_freq", 1, 1, INT32_MAX) != 1)
    f.fail(unsupported("\"moe_layer_freq\" other than 1 is not supported"));
}

}  // namespace

// Experts by softmax; groups are judged by their best score alone.
void read_deepseek_v2(ConfigFields& f, ModelConfig* c) {
  read_latent(f, {}, c);
  c->mlp_bias = f.boolean("mlp_bias", false);
  refuse_other_steps(f);
  const std::string method = f.text("topk_method", "greedy");
  if (method != "greedy" && method != "group_limited_greedy")
    f.fail(unsupported("\"topk_method\" \"" + method.substr(0, 60) +
                       "\" is not supported; supported: greedy, group_limited_greedy"));
  read_grouped_experts(f, {.num_experts = 64, .top_k = 6, .intermediate_size = 1407, .num_shared = 2}, c);
  ExpertsConfig& e = c->experts;
  e.scores = ExpertScores::kSoftmax;
  e.choice_bias = e.norm_topk_prob = false;
  e.scores_of_group = 1;
  if (method == "greedy") e.num_groups = e.top_groups = 1;
}

void read_deepseek_v3(ConfigFields& f, ModelConfig* c) {
  read_latent(f, {}, c);
  c->mtp.is_known = c->mtp.layer.has_experts = true;
  refuse_other_steps(f);
  read_grouped_experts(f,
                       {.num_dense_layers = 3,
                        .num_experts = 256,
                        .intermediate_size = 2048,
                        .num_groups = 8,
                        .top_groups = 4,
                        .weight_scale = 2.5},
                       c);
}

void read_glm4_moe_lite(ConfigFields& f, ModelConfig* c) {
  read_latent(f, {.query_rank = 768, .key_dim = 192, .value_dim = 256}, c);
  c->mtp.is_known = c->mtp.layer.has_experts = true;
  read_grouped_experts(
      f, {.num_dense_layers = 1, .num_experts = 64, .top_k = 4, .intermediate_size = 1536, .weight_scale = 1.8}, c);
}

void read_youtu(ConfigFields& f, ModelConfig* c) { read_latent(f, {}, c); }

}  // namespace llmb
