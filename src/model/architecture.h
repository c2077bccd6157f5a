// The architectures that can be loaded: how each one's config.json is spelt, what its configuration class assumes where
// the file is silent, and how its checkpoint names and lays out the weights. Private to src/model.
//
// Everything about an architecture is here; the forward pass sees the ModelConfig only.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/model_config.h"
#include "model/config_fields.h"
#include "model/rope_config.h"

namespace llmb {

// Names in config.json. "a|b": the first that the file has; nullptr: there is no such field.
struct ConfigNames {
  const char* hidden_size = "hidden_size";
  const char* num_hidden_layers = "num_hidden_layers";
  const char* num_attention_heads = "num_attention_heads";
  const char* num_key_value_heads = "num_key_value_heads";
  const char* intermediate_size = "intermediate_size";
  const char* max_position_embeddings = "max_position_embeddings";
  const char* norm_eps = "rms_norm_eps";  // nullptr: always the default
  const char* activation = "hidden_act";
};

// Defaults of the configuration class, for fields that the file leaves out.
struct ConfigDefaults {
  int32_t vocab_size = 0;           // 0: the file must say
  int32_t num_hidden_layers = 0;    // 0: the file must say; else its reader finds them
  int32_t num_attention_heads = 0;  // 0: the file must say
  int32_t num_key_value_heads = 0;  // 0: as num_attention_heads
  int32_t head_dim = 0;             // 0: hidden_size / num_attention_heads; -1: that, whatever the file says
  int32_t intermediate_factor = 0;  // > 0: intermediate_size is that times hidden_size where the file is silent
  int32_t max_position_embeddings = 2048;
  double norm_eps = 1e-6;
  const char* activation = "silu";
  bool is_gated = true;  // the MLP, whatever the file says
  bool tie_word_embeddings = false;
};

// How the rows of q, k and v lie in one tensor.
enum class QkvOrder {
  kStacked,  // all of q, all of k, all of v
  kGrouped,  // for each KV head: its query heads, k, v
  kQuarters,  // for each quarter of the heads: q, v, k
};

// How LayerNorms of the heads of q and k are stored.
enum class HeadNorms {
  kMatrix,    // <norm>.weight [heads, head_dim]
  kOneByOne,  // <norm>.norms.<head>.weight [head_dim]
  kShared,    // <norm>.weight and .bias [head_dim], of all heads
};

// How the experts of a layer are stored; kStacked falls back to kPerExpert.
enum class ExpertsLayout {
  kPerExpert,    // <experts>.<i>.<gate, up, down>.weight
  kStacked,      // <experts><stacked_gate_up> [E, 2 I, H], <experts><stacked_down> [E, H, I]
  kTransposed,   // <experts>.gate_up_proj [E, H, 2 I], gate first, down_proj [E, I, H]
  kInterleaved,  // <experts>.gate_up_proj [E, H, 2 I], gate and up in turn, down_proj [E, I, H]; or in MXFP4 blocks
};

// Tensor names, without ".weight" and ".bias". "a|b": the first that the checkpoint has. Those of a layer come after
// <prefix><layers>.<index>.; nullptr: there is no such tensor.
struct WeightNames {
  const WeightNames* older = nullptr;  // of checkpoints that have older->embedding_norm
  const char* prefix = "model.|language_model.model.|model.language_model.|";  // of all but lm_head
  const char* embed_tokens = "embed_tokens";
  const char* embed_positions = nullptr;
  const char* embed_types = nullptr;
  const char* embedding_norm = nullptr;
  const char* layers = "layers";
  const char* input_norm = "input_layernorm";  // nullptr: norms have no weights, as if these were 1
  const char* qkv = nullptr;  // or three of them:
  const char *q = "self_attn.q_proj", *k = "self_attn.k_proj", *v = "self_attn.v_proj";
  QkvOrder qkv_order = QkvOrder::kStacked;
  bool is_interleaved = false;  // rope turns neighbouring channels together, not those half of rotary_dim apart
  const char *q_norm = "self_attn.q_norm", *k_norm = "self_attn.k_norm";
  HeadNorms head_norms = HeadNorms::kMatrix;
  // With latents. kv_b: for each head, rows of its key's matrix, then of its value's; or both apart, keys' transposed.
  const char *q_a = "self_attn.q_a_proj", *q_a_norm = "self_attn.q_a_layernorm", *q_b = "self_attn.q_b_proj";
  const char *kv_a = "self_attn.kv_a_proj_with_mqa", *kv_a_norm = "self_attn.kv_a_layernorm";
  const char *kv_b = "self_attn.kv_b_proj", *k_b = "self_attn.k_b_proj", *v_b = "self_attn.v_b_proj";
  const char* sinks = "self_attn.sinks";
  const char* mamba2 = "mamba.";  // the folder of a layer's state of that kind
  bool joins_delta_inputs = false;  // adapters of a gated delta's inputs are of in_proj_qkvz and in_proj_ba
  const char* o = "self_attn.o_proj";
  const char* attention_post_norm = "post_attention_layernorm";
  const char* mlp_norm = "post_attention_layernorm";
  const char* mlp_post_norm = "post_feedforward_layernorm";
  const char *gate = "mlp.gate_proj", *up = "mlp.up_proj";
  const char* gate_up = nullptr;  // both in one, gate first
  const char* down = "mlp.down_proj";
  bool is_transposed = false;  // projections are stored [in, out]
  const char* router = "mlp.gate";
  const char* router_scale = "router.scale";  // with experts beside the dense MLP: of the router's input
  const char* expert_scales = "router.per_expert_scale";
  const char *experts_norm = "pre_feedforward_layernorm_2", *experts_post_norm = "post_feedforward_layernorm_2";
  const char* dense_post_norm = "post_feedforward_layernorm_1";
  const char* choice_bias = "mlp.gate.e_score_correction_bias";
  bool choice_bias_is_matrix = false;  // [1, E]
  const char* shared_expert = "mlp.shared_experts";  // its folder
  const char *shared_gate_proj = "gate_proj", *shared_up = "up_proj", *shared_down = "down_proj";  // in it
  const char* shared_gate_up = nullptr;
  const char* shared_gate = nullptr;
  const char* experts = "mlp.experts";
  ExpertsLayout experts_layout = ExpertsLayout::kStacked;
  // Without gates expert_gate is expert_up, and stacked_gate_up the stacked up.
  const char *expert_gate = "gate_proj", *expert_up = "up_proj", *expert_down = "down_proj";
  const char *stacked_gate_up = ".gate_up_proj", *stacked_down = ".down_proj";
  // Inputs of layers: for all of them, and in a layer.
  const char *embed_layer_inputs = "embed_tokens_per_layer", *project_layer_inputs = "per_layer_model_projection";
  const char* layer_inputs_norm = "per_layer_projection_norm";
  const char *input_gate = "per_layer_input_gate", *input_projection = "per_layer_projection";
  const char* input_post_norm = "post_per_layer_input_norm";
  const char* layer_scalar = "layer_scalar";  // the tensor's whole name in its layer
  const char* norm = "norm";
  const char* lm_head = "lm_head|language_model.lm_head";
  bool lm_head_bias = false;
};

struct Architecture {
  const char* model_type;
  ConfigNames names;
  ConfigDefaults defaults;
  WeightNames weights;
  // The rest of config.json: everything but sizes, eps, activation, tied embeddings, dtype and token ids.
  void (*read)(ConfigFields&, ModelConfig*);
};

std::span<const Architecture> architectures();  // in alphabetical order

const Architecture* find_architecture(std::string_view model_type);  // nullptr where there is none

// Models that see images and more: run as what the "text_config" of their config.json describes.
std::span<const char* const> wrappers_of_text_models();

// ---- what the readers share: architecture_fields.cpp --------------------------------------------------------------

// Whether each layer sees a window only: "layer_types" where the file has it, else by `slides(index)`.
std::vector<bool> read_sliding_layers(ConfigFields& f, const ModelConfig& config, bool (*slides)(int32_t index));

// Layers that slide see `window` positions. One that no sequence can outgrow is none.
void set_windows(const std::vector<bool>& sliding, int64_t window, ModelConfig* config);

// In an encoder, layers that slide see `reach` > 0 positions on either side, and have rope 1.
void set_reach(const std::vector<bool>& sliding, int64_t reach, ModelConfig* config);

// "sliding_window", for all layers. `fallback`: where the file is silent; 0: none.
void read_window_of_all_layers(ConfigFields& f, int64_t fallback, ModelConfig* config);

std::vector<LayerConfig>& layers_of(ModelConfig* config);  // one for each layer, made where there are none yet

// Ropes 0, of layers that see everything, and 1, of those that slide: rope parameters by layer type; or, in older files,
// one scaling for the former and theta alone for the latter, by local's theta_name.
void read_ropes_by_type(ConfigFields& f, const RopeDefaults& full, const RopeDefaults& local, ModelConfig* config);

void refuse_if_true(ConfigFields& f, const char* name);

// Slopes of ALiBi (Press et al. 2021, arXiv:2108.12409), times `scale`. Bloom and MPT differ where the number of heads
// is no power of two.
std::vector<float> bloom_alibi_slopes(int32_t num_heads, double scale);
std::vector<float> mpt_alibi_slopes(int32_t num_heads, double bias_max);

}  // namespace llmb
