// The weights of a model in a backend's form, fused for the forward pass: q, k and v are one matrix, gate and up
// another. How a checkpoint names and lays them out is the architecture's affair (model/architecture.h).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "core/model_config.h"
#include "core/rank_part.h"
#include "model/ops.h"
#include "model/weight_source.h"

namespace llmb {

struct NormWeights {
  std::unique_ptr<DeviceBuffer> weight;  // null: there is no such norm
  std::unique_ptr<DeviceBuffer> bias;    // null: none
};

// Null members are weights that the model does not have.
struct LayerWeights {
  NormWeights input_norm;             // [hidden_size]
  std::unique_ptr<LinearWeight> qkv;  // [q_size + 2 * kv_size, hidden_size], with a state [conv_channels, hidden_size]
  // With latents, qkv is [num_heads * query_dim, query_rank or hidden_size], and:
  std::unique_ptr<LinearWeight> q_a;                     // [query_rank, hidden_size]
  std::unique_ptr<LinearWeight> kv_a;                    // [head_dim, hidden_size]
  NormWeights q_a_norm, kv_a_norm;                       // [query_rank], [rank]
  std::vector<std::unique_ptr<LinearWeight>> key_heads;  // [num_heads] of [rank, key_dim]
  std::vector<std::unique_ptr<LinearWeight>> value_heads;  // [num_heads] of [value_dim, rank]
  std::unique_ptr<LinearWeight> mixed_gate;  // [q_size, hidden_size], with a state [values_size, hidden_size]
  // With a state:
  std::unique_ptr<LinearWeight> conv_gate;    // kShortConv: [hidden_size, hidden_size], of the convolution's input
  std::unique_ptr<LinearWeight> state_gates;  // [gates_size, hidden_size]
  std::unique_ptr<DeviceBuffer> conv;         // [conv_width * conv_channels]  the newest token's last
  std::unique_ptr<DeviceBuffer> conv_bias;    // [conv_channels]
  std::unique_ptr<DeviceBuffer> log_a;        // [num_value_heads]
  std::unique_ptr<DeviceBuffer> dt_bias;      // [num_value_heads]
  std::unique_ptr<DeviceBuffer> skip;         // [num_value_heads]
  std::vector<std::unique_ptr<DeviceBuffer>> state_norms;  // kGatedDelta: one of [value_dim]; kMamba2: of each group
  NormWeights q_norm, k_norm;                              // [head_dim], or [q_size] and [kv_size]
  NormWeights v_norm;                                      // [head_dim]
  std::unique_ptr<DeviceBuffer> sinks;                     // [num_attention_heads]
  std::unique_ptr<LinearWeight> o;  // [hidden_size, o_size], with a state [hidden_size, values_size]
  NormWeights attention_post_norm;  // [hidden_size]
  NormWeights mlp_norm;             // [hidden_size]
  // The MLP, or the expert that all tokens go through.
  std::unique_ptr<LinearWeight> gate_up;      // [2 * intermediate_size, hidden_size], or up alone
  std::unique_ptr<LinearWeight> down;         // [hidden_size, intermediate_size]
  NormWeights mlp_post_norm;                  // [hidden_size]
  std::unique_ptr<LinearWeight> router;       // [num_experts, hidden_size]
  std::unique_ptr<DeviceBuffer> choice_bias;  // [num_experts]
  std::unique_ptr<ExpertsWeight> experts;
  std::unique_ptr<LinearWeight> shared_gate;  // [1, hidden_size]
  // With experts beside the dense MLP, all of hidden_size but the first:
  std::unique_ptr<DeviceBuffer> expert_scales;  // [num_experts]
  NormWeights router_norm, experts_norm, dense_post_norm, experts_post_norm;
  // For the input that a layer has of each token.
  std::unique_ptr<LinearWeight> input_gate;        // [hidden_size_per_layer_input, hidden_size]
  std::unique_ptr<LinearWeight> input_projection;  // [hidden_size, hidden_size_per_layer_input]
  NormWeights input_post_norm;                     // [hidden_size]
  std::unique_ptr<DeviceBuffer> scalar;            // [1]
};

// Weights of the layer behind the last one (MtpConfig), beside those that every layer has.
struct MtpWeights {
  NormWeights embedding_norm, hidden_norm;                     // [hidden_size]
  std::unique_ptr<LinearWeight> from_embedding, from_hidden;  // [hidden_size, hidden_size]
  NormWeights norm;                                            // [hidden_size]  behind the layer
  std::unique_ptr<LinearWeight> lm_head;                       // [vocab_size, hidden_size]; null: it is the model's
  // EAGLE-3's: the layer's state is made of three of the model's, and its q, k and v are those of the embedding
  // (LayerWeights::qkv) and of the state, added. It has no from_embedding and from_hidden.
  std::array<std::unique_ptr<LinearWeight>, 3> from_states;  // [hidden_size, hidden_size]
  std::unique_ptr<LinearWeight> hidden_qkv;                  // [qkv_size, hidden_size]
  std::vector<TokenId> head_tokens;                          // of lm_head's rows; empty: a row for each token; -1: none
};

struct ModelWeights {
  std::unique_ptr<LinearWeight> embed_tokens;     // [vocab_size, hidden_size]
  std::unique_ptr<LinearWeight> embed_positions;  // [max_position_embeddings, hidden_size], or null
  std::unique_ptr<LinearWeight> embed_types;      // [num_token_types, hidden_size], or null
  NormWeights embedding_norm;                     // [hidden_size], or null
  // Inputs of layers, one behind the other: a stage's, [vocab_size_per_layer_input, …]; all layers', [… , hidden_size], as
  // how a product rounds may depend on how many columns it gives; and of one layer's.
  std::unique_ptr<LinearWeight> embed_layer_inputs, project_layer_inputs;
  int64_t num_layer_inputs = 0;                   // layers that project_layer_inputs is of
  NormWeights layer_inputs_norm;                  // [hidden_size_per_layer_input]
  std::vector<LayerWeights> layers;               // [num_used_layers]
  NormWeights norm;                               // [hidden_size]
  std::unique_ptr<LinearWeight> lm_head;          // [vocab_size, hidden_size]; null: embed_tokens is tied to it
  MtpWeights mtp;                                 // with mtp.is_used

  const LinearWeight& output_projection() const { return lm_head ? *lm_head : *embed_tokens; }
  int64_t resident_bytes() const;
};

// Takes every tensor from `source`, checking its dtype and shape. The message of an error names the tensor. share: the
// part of the weights that is made; sizes above are then a rank's. Null: all. REQUIRES: config_loader knows
// config.model_type.
Result<ModelWeights> load_model_weights(const ModelConfig& config, WeightSource& source, WeightMaker& maker,
                                        const ModelShare* share = nullptr);

// Whether load_model_weights would find every tensor that it asks for. `shapes` may give views without data.
Status check_model_weights(const ModelConfig& config, WeightSource& shapes);

// Bytes of all parameters in their stored dtype: what load_model_weights will need, about.
int64_t stored_weight_bytes(const ModelConfig& config);

}  // namespace llmb
