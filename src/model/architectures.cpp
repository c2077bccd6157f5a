#include <algorithm>
#include <array>

#include "model/architecture.h"
#include "model/architecture_readers.h"

namespace llmb {

namespace {

constexpr WeightNames kLlamaWeights;

constexpr WeightNames with_post_norms() {
  WeightNames w;
  w.mlp_norm = "pre_feedforward_layernorm";
  return w;
}

constexpr WeightNames kPhi3Weights = {.qkv = "self_attn.qkv_proj", .gate_up = "mlp.gate_up_proj"};

constexpr WeightNames kGpt2Weights = {.prefix = "transformer.|",
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

constexpr WeightNames kGptNeoxWeights = {.prefix = "gpt_neox.",
                                         .embed_tokens = "embed_in",
                                         .qkv = "attention.query_key_value",
                                         .qkv_order = QkvOrder::kGrouped,
                                         .o = "attention.dense",
                                         .up = "mlp.dense_h_to_4h",
                                         .down = "mlp.dense_4h_to_h",
                                         .norm = "final_layer_norm",
                                         .lm_head = "embed_out|lm_head"};

constexpr WeightNames kStarcoder2Weights = {.up = "mlp.c_fc", .down = "mlp.c_proj"};

constexpr WeightNames kFalconWeights = {.prefix = "transformer.|",
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

constexpr WeightNames kBloomWeights = {.prefix = "transformer.|",
                                       .embed_tokens = "word_embeddings",
                                       .embedding_norm = "word_embeddings_layernorm",
                                       .layers = "h",
                                       .qkv = "self_attention.query_key_value",
                                       .qkv_order = QkvOrder::kGrouped,
                                       .o = "self_attention.dense",
                                       .up = "mlp.dense_h_to_4h",
                                       .down = "mlp.dense_4h_to_h",
                                       .norm = "ln_f"};

constexpr WeightNames kMptWeights = {.prefix = "transformer.|",
                                     .embed_tokens = "wte",
                                     .layers = "blocks",
                                     .input_norm = "norm_1",
                                     .qkv = "attn.Wqkv",
                                     .o = "attn.out_proj",
                                     .mlp_norm = "norm_2",
                                     .up = "ffn.up_proj",
                                     .down = "ffn.down_proj",
                                     .norm = "norm_f"};

constexpr WeightNames kMixtralWeights = {.router = "block_sparse_moe.gate|mlp.gate",
                                         .experts = "block_sparse_moe.experts|mlp.experts",
                                         .expert_gate = "w1",
                                         .expert_up = "w3",
                                         .expert_down = "w2"};

constexpr WeightNames kGptOssWeights = {.router = "mlp.router", .experts_layout = ExpertsLayout::kInterleaved};

constexpr ConfigNames kGpt2Names = {.hidden_size = "n_embd|hidden_size",
                                    .num_hidden_layers = "n_layer|num_hidden_layers",
                                    .num_attention_heads = "n_head|num_attention_heads",
                                    .intermediate_size = "n_inner",
                                    .max_position_embeddings = "n_positions|max_position_embeddings",
                                    .norm_eps = "layer_norm_epsilon",
                                    .activation = "activation_function"};

constexpr ConfigNames kFalconNames = {.hidden_size = "n_embed|hidden_size",
                                      .num_key_value_heads = "num_kv_heads",
                                      .intermediate_size = "ffn_hidden_size",
                                      .norm_eps = "layer_norm_epsilon",
                                      .activation = "activation"};

// Bloom's class has no activation and no longest sequence: the published files name the one it was trained on.
constexpr ConfigNames kBloomNames = {.hidden_size = "n_embed|hidden_size",
                                     .num_hidden_layers = "n_layer|num_hidden_layers",
                                     .num_attention_heads = "n_head|num_attention_heads",
                                     .num_key_value_heads = nullptr,
                                     .intermediate_size = nullptr,
                                     .max_position_embeddings = "seq_length",
                                     .norm_eps = "layer_norm_epsilon",
                                     .activation = nullptr};

constexpr ConfigNames kMptNames = {.hidden_size = "d_model|hidden_size",
                                   .num_hidden_layers = "n_layers|num_hidden_layers",
                                   .num_attention_heads = "n_heads|num_attention_heads",
                                   .num_key_value_heads = nullptr,
                                   .intermediate_size = nullptr,
                                   .max_position_embeddings = "max_seq_len",
                                   .norm_eps = "layer_norm_epsilon",
                                   .activation = nullptr};

// In alphabetical order.
const Architecture kArchitectures[] = {
    {"bloom",
     kBloomNames,
     {.head_dim = -1,
      .intermediate_factor = 4,
      .norm_eps = 1e-5,
      .activation = "gelu_new",
      .is_gated = false,
      .tie_word_embeddings = true},
     kBloomWeights,
     read_bloom},
    {"falcon",
     kFalconNames,
     {.head_dim = -1,
      .intermediate_factor = 4,
      .norm_eps = 1e-5,
      .activation = "gelu",
      .is_gated = false,
      .tie_word_embeddings = true},
     kFalconWeights,
     read_falcon},
    {"gemma",
     {},
     {.num_key_value_heads = 16,
      .head_dim = 256,
      .max_position_embeddings = 8192,
      .activation = "gelu_pytorch_tanh",
      .tie_word_embeddings = true},
     kLlamaWeights,
     read_gemma},
    {"gemma2",
     {.activation = "hidden_activation"},
     {.num_key_value_heads = 4,
      .head_dim = 256,
      .max_position_embeddings = 8192,
      .activation = "gelu_pytorch_tanh",
      .tie_word_embeddings = true},
     with_post_norms(),
     read_gemma2},
    {"gemma3_text",
     {.activation = "hidden_activation"},
     {.vocab_size = 262208,
      .num_attention_heads = 8,
      .num_key_value_heads = 4,
      .head_dim = 256,
      .max_position_embeddings = 131072,
      .activation = "gelu_pytorch_tanh",
      .tie_word_embeddings = true},
     with_post_norms(),
     read_gemma3_text},
    {"gpt2",
     kGpt2Names,
     {.head_dim = -1,
      .intermediate_factor = 4,
      .max_position_embeddings = 1024,
      .norm_eps = 1e-5,
      .activation = "gelu_new",
      .is_gated = false,
      .tie_word_embeddings = true},
     kGpt2Weights,
     read_gpt2},
    {"gpt_neox",
     {.norm_eps = "layer_norm_eps"},
     {.head_dim = -1, .norm_eps = 1e-5, .activation = "gelu", .is_gated = false},
     kGptNeoxWeights,
     read_gpt_neox},
    {"gpt_oss",
     {},
     {.num_key_value_heads = 8, .head_dim = 64, .max_position_embeddings = 131072, .norm_eps = 1e-5},
     kGptOssWeights,
     read_gpt_oss},
    {"granite", {}, {}, kLlamaWeights, read_granite},
    {"llama", {}, {}, kLlamaWeights, read_llama},
    {"mistral", {}, {.num_key_value_heads = 8, .max_position_embeddings = 131072}, kLlamaWeights, read_mistral},
    {"mixtral",
     {},
     {.num_key_value_heads = 8, .max_position_embeddings = 131072, .norm_eps = 1e-5},
     kMixtralWeights,
     read_mixtral},
    {"mpt",
     kMptNames,
     {.head_dim = -1,
      .intermediate_factor = 4,
      .norm_eps = 1e-5,
      .activation = "gelu",
      .is_gated = false,
      .tie_word_embeddings = true},
     kMptWeights,
     read_mpt},
    {"olmo2", {}, {.norm_eps = 1e-5}, kLlamaWeights, read_olmo2},
    {"phi3", {}, {.max_position_embeddings = 4096, .norm_eps = 1e-5}, kPhi3Weights, read_phi3},
    {"qwen2", {}, {.num_key_value_heads = 32, .max_position_embeddings = 32768}, kLlamaWeights, read_qwen2},
    {"qwen3",
     {},
     {.num_key_value_heads = 32, .head_dim = 128, .max_position_embeddings = 32768},
     kLlamaWeights,
     read_qwen3},
    {"qwen3_moe", {}, {.num_key_value_heads = 4, .max_position_embeddings = 32768}, kLlamaWeights, read_qwen3_moe},
    {"smollm3",
     {},
     {.num_key_value_heads = 4, .max_position_embeddings = 32768, .tie_word_embeddings = true},
     kLlamaWeights,
     read_smollm3},
    {"starcoder2",
     {.norm_eps = "norm_epsilon"},
     {.num_key_value_heads = 2,
      .max_position_embeddings = 4096,
      .norm_eps = 1e-5,
      .activation = "gelu_pytorch_tanh",
      .is_gated = false,
      .tie_word_embeddings = true},
     kStarcoder2Weights,
     read_starcoder2},
};

constexpr const char* kWrappers[] = {"gemma3", "mistral3"};

}  // namespace

std::span<const char* const> wrappers_of_text_models() { return kWrappers; }

std::span<const Architecture> architectures() { return kArchitectures; }

const Architecture* find_architecture(std::string_view model_type) {
  const auto* found = std::find_if(std::begin(kArchitectures), std::end(kArchitectures),
                                   [&](const Architecture& a) { return a.model_type == model_type; });
  return found == std::end(kArchitectures) ? nullptr : found;
}

}  // namespace llmb
