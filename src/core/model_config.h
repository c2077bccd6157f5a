// The shape of a decoder-only transformer, as read from config.json. Hugging Face's names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/types.h"

namespace llmb {

enum class RopeScalingKind { kNone, kLinear, kLlama3 };

struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;               // llama3
  double high_freq_factor = 4.0;              // llama3
  int32_t original_max_position_embeddings = 0;  // llama3
};

// Invariants, checked by config_loader: all sizes > 0; num_attention_heads % num_key_value_heads == 0; head_dim even.
struct ModelConfig {
  std::string model_type;  // "llama", "qwen2", "mistral"
  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;
  int32_t num_hidden_layers = 0;
  int32_t num_attention_heads = 0;
  int32_t num_key_value_heads = 0;
  int32_t head_dim = 0;
  int32_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-5;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  bool qkv_bias = false;     // biases on q_proj, k_proj, v_proj
  bool o_bias = false;       // bias on o_proj
  bool mlp_bias = false;     // biases on gate_proj, up_proj, down_proj
  bool tie_word_embeddings = false;
  DType dtype = DType::kBF16;  // of the stored weights, as config.json says
  // Rows and columns of an fp8 weight that share a scale; 0: no blocks.
  int32_t fp8_block_rows = 0, fp8_block_cols = 0;
  std::vector<TokenId> eos_token_ids;
  std::vector<TokenId> bos_token_ids;

  int64_t q_size() const { return int64_t{num_attention_heads} * head_dim; }
  int64_t kv_size() const { return int64_t{num_key_value_heads} * head_dim; }

  // Parameters that take part in the matrix products of one token, the LM head included, the embedding lookup not.
  int64_t num_matmul_params() const {
    const int64_t attention = int64_t{hidden_size} * (q_size() * 2 + kv_size() * 2);
    const int64_t mlp = int64_t{3} * hidden_size * intermediate_size;
    return num_hidden_layers * (attention + mlp) + int64_t{vocab_size} * hidden_size;
  }
};

}  // namespace llmb
