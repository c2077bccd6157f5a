// Latent attention (LatentConfig), in one way whichever step computes a token.
#include "model/transformer.h"

namespace llmb {

void Transformer::write_latents(int32_t layer, int64_t num_tokens) {
  const LayerWeights& w = weights_.layers[layer];
  const Rows queries = part(queries_), latents = part(latents_);
  const Rows qkv = part(qkv_, config_.qkv_size_of(layer));
  const auto eps = static_cast<float>(config_.latent.norm_eps);
  Rows x = part(normed_);
  add_norm(part(residual_), layer == 0 ? Rows() : pending(), w.input_norm, num_tokens, x);
  ops_.linear(*w.kv_a, x, num_tokens, latents);
  ops_.rms_norm_groups(latents, config_.latent.rope_dim, 1, *w.kv_a_norm.weight, eps, num_tokens);
  if (w.q_a) {
    ops_.linear(*w.q_a, x, num_tokens, part(short_queries_));
    x = part(short_queries_);
    ops_.rms_norm_groups(x, 0, 1, *w.q_a_norm.weight, eps, num_tokens);
  }
  ops_.linear(*w.qkv, x, num_tokens, queries);
  ops_.join_latents(w.key_heads, queries, latents, num_tokens, qkv);
  ops_.rope_and_kv_write(layer, num_tokens, qkv);
}

}  // namespace llmb
