#include <nlohmann/json.hpp>
#include <string>

#include "model/architecture.h"
#include "model/architecture_readers.h"
#include "model/rope_config.h"

namespace llmb {

namespace {

void read_encoder(ConfigFields& f, ModelConfig* c) {
  for (const char* name : {"is_decoder", "add_cross_attention"}) refuse_if_true(f, name);
  c->is_encoder = true;
  c->tie_word_embeddings = true;  // an LM head, which some checkpoints have, is not used
  c->norm = NormKind::kLayer;
}

// Sums behind attention and MLP are normalised, as are the embeddings.
void read_normed_sums(ConfigFields& f, ModelConfig* c) {
  read_encoder(f, c);
  c->norm_bias = c->embedding_norm = true;
  c->residual = ResidualKind::kNormedSum;
  c->pre_norm = c->final_norm = false;
  c->num_token_types = static_cast<int32_t>(f.integer("type_vocab_size", 2, 1, 1 << 16));
}

}  // namespace

void read_bert(ConfigFields& f, ModelConfig* c) {
  read_normed_sums(f, c);
  if (f.text("position_embedding_type", "absolute") != "absolute")
    f.fail(unsupported("\"position_embedding_type\" other than \"absolute\" is not supported"));
  c->qkv_bias = c->o_bias = c->mlp_bias = true;
  c->ropes.clear();
  c->learned_positions = true;
}

// Its positions count from the token that pads on.
void read_roberta(ConfigFields& f, ModelConfig* c) {
  read_bert(f, c);
  c->first_position = static_cast<int32_t>(f.integer("pad_token_id", 1, 0, INT32_MAX - 1)) + 1;
  if (c->first_position >= c->max_position_embeddings)
    f.fail(data_loss("\"max_position_embeddings\" " + std::to_string(c->max_position_embeddings) +
                     " leaves no position behind \"pad_token_id\""));
  c->max_position_embeddings -= c->first_position;
}

// Norms in front, of which the embeddings' own is the first layer's; attention in windows but for every third layer.
void read_modernbert(ConfigFields& f, ModelConfig* c) {
  read_encoder(f, c);
  c->norm_bias = f.boolean("norm_bias", false);
  c->embedding_norm = true;
  c->first_norm = false;
  c->qkv_bias = c->o_bias = f.boolean("attention_bias", false);
  c->mlp_bias = f.boolean("mlp_bias", false);
  read_ropes_by_type(f, {.theta = 160000, .theta_name = "global_rope_theta"},
                     {.theta = 10000, .theta_name = "local_rope_theta"}, c);
  const int64_t pattern = f.integer("global_attn_every_n_layers", 3, 1, INT32_MAX);
  std::vector<bool> sliding = read_sliding_layers(f, *c, [](int32_t) { return true; });
  for (size_t i = 0; !f.has("layer_types") && i < sliding.size(); ++i)
    sliding[i] = i % static_cast<size_t>(pattern) != 0;
  set_reach(sliding, f.integer("local_attention", 128, 2, INT32_MAX) / 2, c);
}

// The first files spell it otherwise, and say in many fields what is refused here if it is not as it is published.
void read_nomic_bert(ConfigFields& f, ModelConfig* c) {
  read_normed_sums(f, c);
  for (const char* name : {"prenorm", "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "use_rms_norm", "parallel_block",
                           "rotary_emb_interleaved"})
    refuse_if_true(f, name);
  if (f.text("activation_function", "swiglu") != "swiglu")
    f.fail(unsupported("\"activation_function\" other than \"swiglu\" is not supported"));
  if (f.number("rotary_emb_fraction", 1, 0, 1) != 1)
    f.fail(unsupported("\"rotary_emb_fraction\" other than 1 is not supported"));
  if (f.has("rotary_scaling_factor")) f.fail(unsupported("\"rotary_scaling_factor\" is not supported"));
  c->ropes = {read_rope(f, {.theta = 1000, .theta_name = "rotary_emb_base"}, c)};
}

}  // namespace llmb
