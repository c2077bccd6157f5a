// The names that architectures give to their sizes and tensors. Private to src/model.
#pragma once

#include "model/architecture.h"

namespace llmb {

// ---- tensors ------------------------------------------------------------------------------------------------------

inline constexpr WeightNames kLlamaWeights;

inline constexpr WeightNames with_post_norms() {
  WeightNames w;
  w.mlp_norm = "pre_feedforward_layernorm";
  return w;
}

inline constexpr WeightNames gemma4_weights() {
  WeightNames w = with_post_norms();
  w.router = "router.proj";
  w.experts = "experts|moe";
  return w;
}

inline constexpr WeightNames kPhi3Weights = {.qkv = "self_attn.qkv_proj", .gate_up = "mlp.gate_up_proj"};

inline constexpr WeightNames kGpt2Weights = {.prefix = "transformer.|",
                                      .embed_tokens = "wte",
                                      .embed_positions = "wpe",
                                      .layers = "h",
                                      .input_norm = "ln_1",
                                      .qkv = "attn.c_attn",
                                      .o = "attn.c_proj",
                                      .mlp_norm = "ln_2",
                                      .up = "mlp.c_fc",
                                      .down = "mlp.c_proj",
                                      .is_transposed = true,
                                      .norm = "ln_f"};

inline constexpr WeightNames kGptNeoxWeights = {.prefix = "gpt_neox.",
                                         .embed_tokens = "embed_in",
                                         .qkv = "attention.query_key_value",
                                         .qkv_order = QkvOrder::kGrouped,
                                         .o = "attention.dense",
                                         .up = "mlp.dense_h_to_4h",
                                         .down = "mlp.dense_4h_to_h",
                                         .norm = "final_layer_norm",
                                         .lm_head = "embed_out|lm_head"};

inline constexpr WeightNames kStarcoder2Weights = {.up = "mlp.c_fc", .down = "mlp.c_proj"};

inline constexpr WeightNames kFalconWeights = {.prefix = "transformer.|",
                                        .embed_tokens = "word_embeddings",
                                        .layers = "h",
                                        .input_norm = "ln_attn|input_layernorm",
                                        .qkv = "self_attention.query_key_value",
                                        .qkv_order = QkvOrder::kGrouped,
                                        .o = "self_attention.dense",
                                        .mlp_norm = "ln_mlp|post_attention_layernorm",
                                        .up = "mlp.dense_h_to_4h",
                                        .down = "mlp.dense_4h_to_h",
                                        .norm = "ln_f"};

inline constexpr WeightNames kBloomWeights = {.prefix = "transformer.|",
                                       .embed_tokens = "word_embeddings",
                                       .embedding_norm = "word_embeddings_layernorm",
                                       .layers = "h",
                                       .qkv = "self_attention.query_key_value",
                                       .qkv_order = QkvOrder::kGrouped,
                                       .o = "self_attention.dense",
                                       .up = "mlp.dense_h_to_4h",
                                       .down = "mlp.dense_4h_to_h",
                                       .norm = "ln_f"};

inline constexpr WeightNames kMptWeights = {.prefix = "transformer.|",
                                     .embed_tokens = "wte",
                                     .layers = "blocks",
                                     .input_norm = "norm_1",
                                     .qkv = "attn.Wqkv",
                                     .o = "attn.out_proj",
                                     .mlp_norm = "norm_2",
                                     .up = "ffn.up_proj",
                                     .down = "ffn.down_proj",
                                     .norm = "norm_f"};

inline constexpr WeightNames kOlmoWeights = {.input_norm = nullptr, .mlp_norm = nullptr, .norm = nullptr};

inline constexpr WeightNames kInterleavedWeights = {.is_interleaved = true};

inline constexpr WeightNames kGlmWeights = {.is_interleaved = true, .gate_up = "mlp.gate_up_proj"};

inline constexpr WeightNames kGlm4Weights = {.is_interleaved = true,
                                      .attention_post_norm = "post_self_attn_layernorm",
                                      .mlp_post_norm = "post_mlp_layernorm",
                                      .gate_up = "mlp.gate_up_proj"};

inline constexpr WeightNames kInternlm2Weights = {.embed_tokens = "tok_embeddings",
                                           .input_norm = "attention_norm",
                                           .qkv = "attention.wqkv",
                                           .qkv_order = QkvOrder::kGrouped,
                                           .o = "attention.wo",
                                           .mlp_norm = "ffn_norm",
                                           .gate = "feed_forward.w1",
                                           .up = "feed_forward.w3",
                                           .down = "feed_forward.w2",
                                           .lm_head = "output"};

inline constexpr WeightNames kPhiWeights = {.q_norm = "self_attn.q_layernorm",
                                     .k_norm = "self_attn.k_layernorm",
                                     .head_norms = HeadNorms::kShared,
                                     .o = "self_attn.dense",
                                     .up = "mlp.fc1",
                                     .down = "mlp.fc2",
                                     .norm = "final_layernorm",
                                     .lm_head_bias = true};

inline constexpr WeightNames kGptjWeights = {.prefix = "transformer.|",
                                      .embed_tokens = "wte",
                                      .layers = "h",
                                      .input_norm = "ln_1",
                                      .q = "attn.q_proj",
                                      .k = "attn.k_proj",
                                      .v = "attn.v_proj",
                                      .is_interleaved = true,
                                      .o = "attn.out_proj",
                                      .up = "mlp.fc_in",
                                      .down = "mlp.fc_out",
                                      .norm = "ln_f",
                                      .lm_head_bias = true};

inline constexpr WeightNames codegen_weights() {
  WeightNames w = kGptjWeights;
  w.qkv = "attn.qkv_proj";
  w.qkv_order = QkvOrder::kQuarters;
  return w;
}

inline constexpr WeightNames kGptNeoWeights = {.prefix = "transformer.|",
                                        .embed_tokens = "wte",
                                        .embed_positions = "wpe",
                                        .layers = "h",
                                        .input_norm = "ln_1",
                                        .q = "attn.attention.q_proj",
                                        .k = "attn.attention.k_proj",
                                        .v = "attn.attention.v_proj",
                                        .o = "attn.attention.out_proj",
                                        .mlp_norm = "ln_2",
                                        .up = "mlp.c_fc",
                                        .down = "mlp.c_proj",
                                        .norm = "ln_f"};

inline constexpr WeightNames bigcode_weights() {
  WeightNames w = kGpt2Weights;
  w.qkv_order = QkvOrder::kGrouped;
  w.is_transposed = false;
  return w;
}

inline constexpr WeightNames kOptWeights = {.prefix = "model.decoder.|decoder.",
                                     .embed_positions = "embed_positions",
                                     .input_norm = "self_attn_layer_norm",
                                     .o = "self_attn.out_proj",
                                     .mlp_norm = "final_layer_norm",
                                     .up = "fc1",
                                     .down = "fc2",
                                     .norm = "final_layer_norm"};

inline constexpr WeightNames kGraniteMoeWeights = {.router = "block_sparse_moe.router.layer",
                                            .shared_expert = "shared_mlp",
                                            .shared_down = "output_linear",
                                            .shared_gate_up = "input_linear",
                                            .experts = "block_sparse_moe",
                                            .stacked_gate_up = ".input_linear.weight",
                                            .stacked_down = ".output_linear.weight"};

// Without experts the shared MLP is the only one.
inline constexpr WeightNames kGraniteHybridWeights = {.gate_up = "shared_mlp.input_linear",
                                               .down = "shared_mlp.output_linear",
                                               .router = "block_sparse_moe.router.layer",
                                               .shared_expert = "shared_mlp",
                                               .shared_down = "output_linear",
                                               .shared_gate_up = "input_linear",
                                               .experts = "block_sparse_moe",
                                               .stacked_gate_up = ".input_linear.weight",
                                               .stacked_down = ".output_linear.weight"};

inline constexpr WeightNames kNemotronHWeights = {.prefix = "backbone.|model.|",
                                           .embed_tokens = "embeddings",
                                           .input_norm = "norm",
                                           .q = "mixer.q_proj",
                                           .k = "mixer.k_proj",
                                           .v = "mixer.v_proj",
                                           .mamba2 = "mixer.",
                                           .o = "mixer.o_proj",
                                           .mlp_norm = "norm",
                                           .up = "mixer.up_proj",
                                           .down = "mixer.down_proj",
                                           .router = "mixer.gate",
                                           .choice_bias = "mixer.gate.e_score_correction_bias",
                                           .shared_expert = "mixer.shared_experts",
                                           .experts = "mixer.experts",
                                           .expert_gate = "up_proj",
                                           .stacked_gate_up = ".up_proj",
                                           .norm = "norm_f"};

inline constexpr WeightNames kLfm2Weights = {.input_norm = "operator_norm",
                                      .q_norm = "self_attn.q_layernorm",
                                      .k_norm = "self_attn.k_layernorm",
                                      .o = "self_attn.out_proj",
                                      .mlp_norm = "ffn_norm",
                                      .gate = "feed_forward.w1",
                                      .up = "feed_forward.w3",
                                      .down = "feed_forward.w2",
                                      .norm = "embedding_norm"};

inline constexpr WeightNames kMixtralWeights = {.router = "block_sparse_moe.gate|mlp.gate",
                                         .experts = "block_sparse_moe.experts|mlp.experts",
                                         .expert_gate = "w1",
                                         .expert_up = "w3",
                                         .expert_down = "w2"};

inline constexpr WeightNames kQwen2MoeWeights = {.shared_expert = "mlp.shared_expert",
                                          .shared_gate = "mlp.shared_expert_gate"};

inline constexpr WeightNames kQwen3NextWeights = {.joins_delta_inputs = true,
                                           .shared_expert = "mlp.shared_expert",
                                           .shared_gate = "mlp.shared_expert_gate"};

inline constexpr WeightNames kQwen3VlMoeWeights = {.experts_layout = ExpertsLayout::kTransposed};

inline constexpr WeightNames kErnie45MoeWeights = {
    .is_interleaved = true,
    .choice_bias = "mlp.moe_statics.e_score_correction_bias|mlp.gate.moe_statics.e_score_correction_bias",
    .choice_bias_is_matrix = true};

inline constexpr WeightNames kHunyuanWeights = {.q_norm = "self_attn.query_layernorm",
                                         .k_norm = "self_attn.key_layernorm",
                                         .router = "mlp.gate.wg",
                                         .shared_expert = "mlp.shared_mlp"};

inline constexpr WeightNames kStablelmWeights = {.q_norm = "self_attn.q_layernorm",
                                          .k_norm = "self_attn.k_layernorm",
                                          .head_norms = HeadNorms::kOneByOne};

inline constexpr WeightNames kLlama4Weights = {.is_interleaved = true,
                                        .gate = "feed_forward.gate_proj",
                                        .up = "feed_forward.up_proj",
                                        .down = "feed_forward.down_proj",
                                        .router = "feed_forward.router",
                                        .shared_expert = "feed_forward.shared_expert",
                                        .experts = "feed_forward.experts",
                                        .experts_layout = ExpertsLayout::kTransposed};

inline constexpr WeightNames kGptOssWeights = {.router = "mlp.router", .experts_layout = ExpertsLayout::kInterleaved};

inline constexpr WeightNames bert_weights(const char* prefix) {
  return {.prefix = prefix,
          .embed_tokens = "embeddings.word_embeddings",
          .embed_positions = "embeddings.position_embeddings",
          .embed_types = "embeddings.token_type_embeddings",
          .embedding_norm = "embeddings.LayerNorm",
          .layers = "encoder.layer",
          .q = "attention.self.query",
          .k = "attention.self.key",
          .v = "attention.self.value",
          .o = "attention.output.dense",
          .attention_post_norm = "attention.output.LayerNorm",
          .mlp_post_norm = "output.LayerNorm",
          .up = "intermediate.dense",
          .down = "output.dense"};
}

inline constexpr WeightNames kModernBertWeights = {.embed_tokens = "embeddings.tok_embeddings",
                                            .embedding_norm = "embeddings.norm",
                                            .input_norm = "attn_norm",
                                            .qkv = "attn.Wqkv",
                                            .o = "attn.Wo",
                                            .mlp_norm = "mlp_norm",
                                            .gate_up = "mlp.Wi",
                                            .down = "mlp.Wo",
                                            .norm = "final_norm"};

inline constexpr WeightNames kOlderNomicBertWeights = {.embed_tokens = "embeddings.word_embeddings",
                                                .embed_types = "embeddings.token_type_embeddings",
                                                .embedding_norm = "emb_ln",
                                                .layers = "encoder.layers",
                                                .qkv = "attn.Wqkv",
                                                .o = "attn.out_proj",
                                                .attention_post_norm = "norm1",
                                                .mlp_post_norm = "norm2",
                                                .gate = "mlp.fc12",
                                                .up = "mlp.fc11",
                                                .down = "mlp.fc2"};

inline constexpr WeightNames kNomicBertWeights = {.older = &kOlderNomicBertWeights,
                                           .prefix = "nomic_bert.|bert.|",
                                           .embed_tokens = "embeddings.word_embeddings",
                                           .embed_types = "embeddings.token_type_embeddings",
                                           .embedding_norm = "embeddings.LayerNorm",
                                           .mlp_post_norm = "post_mlp_layernorm"};

// ---- fields of config.json ----------------------------------------------------------------------------------------

inline constexpr ConfigNames kGpt2Names = {.hidden_size = "n_embd|hidden_size",
                                    .num_hidden_layers = "n_layer|num_hidden_layers",
                                    .num_attention_heads = "n_head|num_attention_heads",
                                    .intermediate_size = "n_inner",
                                    .max_position_embeddings = "n_positions|max_position_embeddings",
                                    .norm_eps = "layer_norm_epsilon",
                                    .activation = "activation_function"};

inline constexpr ConfigNames kGptNeoNames = {.num_hidden_layers = "num_layers|num_hidden_layers",
                                      .num_attention_heads = "num_heads|num_attention_heads",
                                      .num_key_value_heads = nullptr,
                                      .norm_eps = "layer_norm_epsilon",
                                      .activation = "activation_function"};

inline constexpr ConfigNames kOptNames = {.num_key_value_heads = nullptr,
                                   .intermediate_size = "ffn_dim",
                                   .norm_eps = nullptr,
                                   .activation = "activation_function"};

inline constexpr ConfigNames kBertNames = {.num_key_value_heads = nullptr, .norm_eps = "layer_norm_eps"};

inline constexpr ConfigNames kNomicBertNames = {.hidden_size = "hidden_size|n_embd",
                                         .num_hidden_layers = "num_hidden_layers|n_layer",
                                         .num_attention_heads = "num_attention_heads|n_head",
                                         .num_key_value_heads = nullptr,
                                         .intermediate_size = "intermediate_size|n_inner",
                                         .max_position_embeddings = "max_position_embeddings|n_positions",
                                         .norm_eps = "layer_norm_eps|layer_norm_epsilon"};

inline constexpr ConfigNames kFalconNames = {.hidden_size = "n_embed|hidden_size",
                                      .num_key_value_heads = "num_kv_heads",
                                      .intermediate_size = "ffn_hidden_size",
                                      .norm_eps = "layer_norm_epsilon",
                                      .activation = "activation"};

// Bloom's class has no activation and no longest sequence: the published files name the one it was trained on.
inline constexpr ConfigNames kBloomNames = {.hidden_size = "n_embed|hidden_size",
                                     .num_hidden_layers = "n_layer|num_hidden_layers",
                                     .num_attention_heads = "n_head|num_attention_heads",
                                     .num_key_value_heads = nullptr,
                                     .intermediate_size = nullptr,
                                     .max_position_embeddings = "seq_length",
                                     .norm_eps = "layer_norm_epsilon",
                                     .activation = nullptr};

inline constexpr ConfigNames kMptNames = {.hidden_size = "d_model|hidden_size",
                                   .num_hidden_layers = "n_layers|num_hidden_layers",
                                   .num_attention_heads = "n_heads|num_attention_heads",
                                   .num_key_value_heads = nullptr,
                                   .intermediate_size = nullptr,
                                   .max_position_embeddings = "max_seq_len",
                                   .norm_eps = "layer_norm_epsilon",
                                   .activation = nullptr};

}  // namespace llmb
