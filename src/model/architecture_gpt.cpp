#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "model/architecture.h"
#include "model/architecture_readers.h"
#include "model/rope_config.h"

namespace llmb {

namespace {

void set_layer_norm(ModelConfig* c, bool bias) {
  c->norm = NormKind::kLayer;
  c->norm_bias = bias;
}

void set_biases(ModelConfig* c, bool attention, bool mlp) {
  c->qkv_bias = c->o_bias = attention;
  c->mlp_bias = mlp;
}

// Heads of q, k and v lie together in one matrix of 3 * hidden_size rows.
void require_whole_heads(ConfigFields& f, const ModelConfig& c) {
  if (c.q_size() != c.hidden_size)
    f.fail(data_loss("\"hidden_size\" " + std::to_string(c.hidden_size) + " is not " +
                     std::to_string(c.num_attention_heads) + " heads of " + std::to_string(c.head_dim)));
}

}  // namespace

void read_gpt2(ConfigFields& f, ModelConfig* c) {
  refuse_if_true(f, "add_cross_attention");
  require_whole_heads(f, *c);
  set_layer_norm(c, true);
  set_biases(c, true, true);
  c->ropes.clear();
  c->learned_positions = true;
  if (!f.boolean("scale_attn_weights", true)) c->attention_scale = 1;
  c->scale_by_inverse_layer = f.boolean("scale_attn_by_inverse_layer_idx", false);
}

void read_gpt_bigcode(ConfigFields& f, ModelConfig* c) {
  read_gpt2(f, c);
  if (f.boolean("multi_query", true)) c->num_key_value_heads = 1;
}

// "attention_types" is [[["global", "local"], 12]]: kinds of layers, and how often they are repeated.
void read_gpt_neo(ConfigFields& f, ModelConfig* c) {
  require_whole_heads(f, *c);
  set_layer_norm(c, true);
  c->o_bias = c->mlp_bias = true;
  c->ropes.clear();
  c->learned_positions = true;
  c->attention_scale = 1;
  static const nlohmann::json kInTurn = nlohmann::json::parse(R"([[["global", "local"], 1024]])");
  const nlohmann::json& types = f.has("attention_types") ? *f.find("attention_types") : kInTurn;
  std::vector<bool> local;
  const auto size = static_cast<size_t>(c->num_hidden_layers);
  for (const nlohmann::json& item : types) {
    if (!item.is_array() || item.size() != 2 || !item[0].is_array() || !item[1].is_number_integer()) break;
    for (int64_t i = 0; i < item[1].get<int64_t>() && local.size() < size && !item[0].empty(); ++i)
      for (const nlohmann::json& kind : item[0]) local.push_back(kind == "local");
  }
  if (local.size() < size) return f.fail(data_loss("\"attention_types\" does not name a kind for each layer"));
  local.resize(size);
  set_windows(local, f.integer("window_size", 256, 1, INT64_MAX), c);
}

void read_opt(ConfigFields& f, ModelConfig* c) {
  require_whole_heads(f, *c);
  for (const char* name : {"do_layer_norm_before", "layer_norm_elementwise_affine"})
    if (!f.boolean(name, true)) f.fail(unsupported(std::string("\"") + name + "\" false is not supported"));
  refuse_if_true(f, "_remove_final_layer_norm");
  if (f.integer("word_embed_proj_dim", c->hidden_size, 1, INT32_MAX) != c->hidden_size)
    f.fail(unsupported("\"word_embed_proj_dim\" other than \"hidden_size\" is not supported"));
  const bool bias = f.boolean("enable_bias", true);
  set_layer_norm(c, true);
  set_biases(c, bias, bias);
  c->ropes.clear();
  c->learned_positions = true;
  c->first_position = 2;
}

// LayerNorms that multiply by 1 + weight.
void read_nemotron(ConfigFields& f, ModelConfig* c) {
  set_layer_norm(c, true);
  c->norm_weight_offset = 1;
  set_biases(c, f.boolean("attention_bias", false), f.boolean("mlp_bias", false));
  c->ropes = {read_rope(f, {.partial_rotary_factor = 0.5, .partial_name = "partial_rotary_factor"}, c)};
}

void read_gpt_neox(ConfigFields& f, ModelConfig* c) {
  require_whole_heads(f, *c);
  set_layer_norm(c, true);
  set_biases(c, f.boolean("attention_bias", true), true);
  if (f.boolean("use_parallel_residual", true)) c->residual = ResidualKind::kParallel;
  c->ropes = {
      read_rope(f, {.partial_rotary_factor = 0.25, .theta_name = "rotary_emb_base", .partial_name = "rotary_pct"}, c)};
}

void read_starcoder2(ConfigFields& f, ModelConfig* c) {
  const bool bias = f.boolean("use_bias", true);
  set_layer_norm(c, true);
  set_biases(c, bias, bias);
  c->ropes = {read_rope(f, {}, c)};
  read_window_of_all_layers(f, 0, c);
}

// The 7B model's kind: one KV head, one norm for attention and MLP side by side. "new_decoder_architecture", of the 40B
// model: several KV heads, and two norms unless num_ln_in_parallel_attn is 1.
void read_falcon(ConfigFields& f, ModelConfig* c) {
  require_whole_heads(f, *c);
  const bool is_new = f.boolean("new_decoder_architecture", false), is_parallel = f.boolean("parallel_attn", true);
  if (!is_new) c->num_key_value_heads = f.boolean("multi_query", true) ? 1 : c->num_attention_heads;
  if (is_new && !is_parallel)
    f.fail(unsupported("\"new_decoder_architecture\" without \"parallel_attn\" is not supported"));
  set_layer_norm(c, true);
  const bool bias = f.boolean("bias", false);
  set_biases(c, bias, bias);
  const int64_t num_norms = f.integer("num_ln_in_parallel_attn", is_new ? 2 : 1, 1, 2);
  if (!is_new && num_norms == 2)
    f.fail(unsupported("\"num_ln_in_parallel_attn\" 2 without \"new_decoder_architecture\" is not supported"));
  if (is_parallel) c->residual = num_norms == 2 ? ResidualKind::kParallel : ResidualKind::kParallelSharedNorm;
  if (f.boolean("alibi", false)) {
    c->ropes.clear();
    c->alibi_slopes = bloom_alibi_slopes(c->num_attention_heads, 1 / std::sqrt(static_cast<double>(c->head_dim)));
  } else {
    c->ropes = {read_rope(f, {}, c)};
  }
}

void read_bloom(ConfigFields& f, ModelConfig* c) {
  refuse_if_true(f, "apply_residual_connection_post_layernorm");
  require_whole_heads(f, *c);
  set_layer_norm(c, true);
  set_biases(c, true, true);
  c->embedding_norm = true;
  c->ropes.clear();
  c->alibi_slopes = bloom_alibi_slopes(c->num_attention_heads, 1);
}

void read_mpt(ConfigFields& f, ModelConfig* c) {
  require_whole_heads(f, *c);
  set_layer_norm(c, false);
  c->ropes.clear();
  if (!f.boolean("no_bias", true)) f.fail(unsupported("\"no_bias\" false is not supported"));
  if (f.has("logit_scale")) f.fail(unsupported("\"logit_scale\" is not supported"));
  if (f.integer("expansion_ratio", 4, 1, 1024) != 4)
    f.fail(unsupported("\"expansion_ratio\" other than 4 is not supported"));
  static const nlohmann::json kNothing = nlohmann::json::object();
  const nlohmann::json* object = f.has("attn_config") ? f.find("attn_config") : &kNothing;
  if (!object->is_object()) return f.fail(data_loss("\"attn_config\" is not an object"));
  ConfigFields attention(*object);
  for (const char* name : {"qk_ln", "prefix_lm", "attn_uses_sequence_id"}) refuse_if_true(attention, name);
  if (!attention.boolean("alibi", true)) attention.fail(unsupported("\"alibi\" false is not supported"));
  if (attention.text("attn_type", "multihead_attention") != "multihead_attention")
    attention.fail(unsupported("\"attn_type\" other than \"multihead_attention\" is not supported"));
  c->attention_scale = attention.number("softmax_scale", 0, 1e-9, 1e9);
  c->qkv_clip = attention.number("clip_qkv", 0, 0, 1e9);
  const double bias_max = attention.number("alibi_bias_max", 8, 1e-3, 1e3);
  f.fail(attention.status().with_context("attn_config"));
  c->alibi_slopes = mpt_alibi_slopes(c->num_attention_heads, bias_max);
}

}  // namespace llmb
