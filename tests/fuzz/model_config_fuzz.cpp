// Any bytes as config.json and as generation_config.json: refused, or values with which the forward pass and the
// sampler can compute.
#include <cmath>

#include "base/check.h"
#include "model/config_loader.h"
#include "tests/fuzz/fuzz_target.h"

LLMB_FUZZ_TARGET(model_config) {
  if (const auto config = llmb::parse_model_config(input); config.ok()) {
    LLMB_CHECK(config->vocab_size >= 1 && config->hidden_size >= 1 && config->intermediate_size >= 1);
    LLMB_CHECK(config->num_hidden_layers >= 1 && config->num_hidden_layers <= 10000);
    LLMB_CHECK(config->num_key_value_heads >= 1);
    LLMB_CHECK(config->num_attention_heads % config->num_key_value_heads == 0);
    LLMB_CHECK(config->head_dim >= 2 && config->head_dim % 2 == 0);
    LLMB_CHECK(config->max_position_embeddings >= 1);
    LLMB_CHECK(std::isfinite(config->norm_eps) && config->norm_eps >= 0);
    for (const llmb::RopeConfig& rope : config->ropes) {
      LLMB_CHECK(std::isfinite(rope.theta) && rope.theta > 0 && std::isfinite(rope.scaling.attention_factor));
      LLMB_CHECK(rope.rotary_dim >= 0 && rope.rotary_dim % 2 == 0 && rope.rotary_dim <= config->head_dim);
    }
    LLMB_CHECK(config->layers.empty() || config->layers.size() == static_cast<size_t>(config->num_hidden_layers));
    for (const llmb::LayerConfig& layer : config->layers) {
      LLMB_CHECK(layer.window >= 0 && layer.rope >= -1 && layer.rope < static_cast<int>(config->ropes.size()));
      LLMB_CHECK(!layer.has_experts || config->experts.num_experts >= config->experts.top_k);
    }
    LLMB_CHECK(config->num_stored_matmul_params() > 0);
    for (const llmb::TokenId id : llmb::merge_eos_token_ids(*config, {})) LLMB_CHECK(id >= 0);
  }
  if (const auto config = llmb::parse_generation_config(input); config.ok()) {
    for (const llmb::TokenId id : config->eos_token_ids) LLMB_CHECK(id >= 0);
    LLMB_CHECK(!config->temperature || (*config->temperature >= 0 && *config->temperature <= 100));
    LLMB_CHECK(!config->top_p || (*config->top_p > 0 && *config->top_p <= 1));
    LLMB_CHECK(!config->top_k || *config->top_k >= 0);
    LLMB_CHECK(!config->min_p || (*config->min_p >= 0 && *config->min_p <= 1));
    LLMB_CHECK(!config->repetition_penalty ||
               (*config->repetition_penalty > 0 && std::isfinite(*config->repetition_penalty)));
    LLMB_CHECK(!config->max_new_tokens || *config->max_new_tokens >= 1);
  }
}
