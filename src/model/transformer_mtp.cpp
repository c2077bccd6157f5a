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
  const bool is_eagle3 = config_.mtp.takes_states();
  if (is_eagle3) join_states(num_tokens, all);
  ops_.store_hidden(all, num_tokens);
  if (is_eagle3) return write_joined_kv(num_tokens);
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

void Transformer::keep_state(int32_t layer, int64_t num_tokens) {
  for (size_t i = 0; i < states_.size(); ++i)
    if (states_[i] && config_.mtp.state_layers[i] == layer)
      ops_.add(residual_->rows(), Rows(), 1, num_tokens, states_[i]->rows());
}

void Transformer::join_states(int64_t num_tokens, Rows out) {
  const auto& from = weights_.mtp.from_states;
  const Rows residual = residual_->rows(), delta = delta_->rows();
  ops_.linear(*from[0], states_[0]->rows(), num_tokens, residual);
  ops_.linear(*from[1], states_[1]->rows(), num_tokens, delta);
  ops_.add(residual, delta, 1, num_tokens, Rows());
  ops_.linear(*from[2], states_[2]->rows(), num_tokens, delta);
  ops_.add(residual, delta, 1, num_tokens, out);
}

void Transformer::write_joined_kv(int64_t num_tokens) {
  const MtpWeights& w = weights_.mtp;
  const int32_t mtp = config_.num_hidden_layers;
  const Rows residual = residual_->rows(), normed = normed_->rows(), hidden_qkv = hidden_qkv_->rows();
  const Rows qkv = {qkv_->rows().data, qkv_->rows().dtype, hidden_qkv.width};
  embed(num_tokens);
  add_norm(residual, Rows(), w.embedding_norm, num_tokens, normed);
  ops_.linear(*weights_.layers[mtp].qkv, normed, num_tokens, qkv);
  ops_.previous_hidden(num_tokens, residual);
  add_norm(residual, Rows(), w.hidden_norm, num_tokens, normed);
  ops_.linear(*w.hidden_qkv, normed, num_tokens, hidden_qkv);
  ops_.add_gated(qkv, hidden_qkv, Rows(), num_tokens);
  ops_.rope_and_kv_write(mtp, num_tokens, qkv);
}

void Transformer::forward_mtp(int64_t num_tokens, int64_t num_samples) {
  LLMB_CHECK(config_.mtp.is_used && num_tokens <= max_num_tokens_ && num_samples <= max_num_samples_);
  const int32_t mtp = config_.num_hidden_layers;
  const Rows all = hidden_->rows();
  const bool is_eagle3 = config_.mtp.takes_states();
  if (is_eagle3) {
    write_joined_kv(num_tokens);
    ops_.paged_attention(mtp, {qkv_->rows().data, qkv_->rows().dtype, hidden_qkv_->rows().width}, nullptr, mixed(mtp));
  } else {
    join_previous_hidden(num_tokens);
    attend(mtp, num_tokens);
  }
  project_and_mlp(mtp, RowKind::kTokens, mixed(mtp), residual_->rows(), num_tokens);
  const NormWeights none;
  add_norm(residual_->rows(), pending(), is_eagle3 ? none : weights_.mtp.norm, num_tokens, all);
  ops_.store_hidden(all, num_tokens);
  if (is_eagle3) add_norm(residual_->rows(), Rows(), weights_.mtp.norm, num_tokens, all);
  ops_.gather_sample_rows(all, num_samples, normed_->rows());
  sample(normed_->rows(), num_samples, weights_.mtp.lm_head ? *weights_.mtp.lm_head : weights_.output_projection());
}

}  // namespace llmb
