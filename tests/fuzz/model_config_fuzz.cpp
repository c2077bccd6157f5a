// Any bytes as config.json and as generation_config.json: refused, or values with which the forward pass and the
// sampler can compute.
#include <cmath>

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
    LLMB_CHECK(std::isfinite(config->rms_norm_eps) && config->rms_norm_eps >= 0);
    LLMB_CHECK(std::isfinite(config->rope_theta) && config->rope_theta > 0);
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
