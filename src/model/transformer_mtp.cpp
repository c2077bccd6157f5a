// The layer behind the last one, which predicts the token behind the next (MtpConfig).
#include "base/check.h"
#include "model/transformer.h"

namespace llmb {

void Transformer::sample_and_remember(int64_t num_tokens, int64_t num_samples, Rows hidden) {
  const int32_t last = config_.num_hidden_layers - 1;
  const Rows all = hidden_->rows();
  project_and_mlp(last, RowKind::kTokens, mixed(last), residual_->rows(), num_tokens);
  end_layer(last, layer_inputs_, residual_->rows(), num_tokens);
  add_norm(residual_->rows(), pending(), weights_.norm, num_tokens, all);
  ops_.gather_sample_rows(all, num_samples, hidden);
  sample(hidden, num_samples, weights_.output_projection());
  ops_.store_hidden(all, num_tokens);
  join_previous_hidden(num_tokens);
  const int32_t mtp = config_.num_hidden_layers;
  config_.has_latent() ? write_latents(mtp, num_tokens) : write_kv(mtp, num_tokens);
}

void Transformer::join_previous_hidden(int64_t num_tokens) {
  const MtpWeights& w = weights_.mtp;
  const Rows residual = residual_->rows(), normed = normed_->rows();
  ops_.previous_hidden(num_tokens, residual);
  add_norm(residual, Rows(), w.hidden_norm, num_tokens, normed);
  ops_.linear(*w.from_hidden, normed, num_tokens, delta_->rows());
  embed(num_tokens);
  add_norm(residual, Rows(), w.embedding_norm, num_tokens, normed);
  ops_.linear(*w.from_embedding, normed, num_tokens, residual);
}

void Transformer::forward_mtp(int64_t num_tokens, int64_t num_samples) {
  LLMB_CHECK(config_.mtp.is_used && num_tokens <= max_num_tokens_ && num_samples <= max_num_samples_);
  const int32_t mtp = config_.num_hidden_layers;
  const Rows all = hidden_->rows();
  join_previous_hidden(num_tokens);
  attend(mtp, num_tokens);
  project_and_mlp(mtp, RowKind::kTokens, mixed(mtp), residual_->rows(), num_tokens);
  add_norm(residual_->rows(), pending(), weights_.mtp.norm, num_tokens, all);
  ops_.store_hidden(all, num_tokens);
  ops_.gather_sample_rows(all, num_samples, normed_->rows());
  sample(normed_->rows(), num_samples, weights_.mtp.lm_head ? *weights_.mtp.lm_head : weights_.output_projection());
}

}  // namespace llmb
