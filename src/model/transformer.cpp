#include "model/transformer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace llmb {

namespace {

int64_t logit_rows(const ModelConfig& config, int64_t max_num_samples, int64_t max_bytes) {
  return std::clamp<int64_t>(max_bytes / (int64_t{config.vocab_size} * 4), 1, max_num_samples);
}

}  // namespace

Transformer::Transformer(const ModelConfig& config, ModelWeights weights, Ops& ops, int64_t max_num_tokens,
                         int64_t max_num_samples, int64_t max_logit_bytes)
    : config_(config),
      weights_(std::move(weights)),
      ops_(ops),
      eps_(static_cast<float>(config.rms_norm_eps)),
      max_num_tokens_(max_num_tokens),
      max_num_samples_(max_num_samples),
      max_logit_rows_(logit_rows(config, max_num_samples, max_logit_bytes)) {
  const int64_t hidden = config.hidden_size, intermediate = config.intermediate_size;
  const DType dtype = ops.activation_dtype();
  residual_ = ops.allocate(max_num_tokens, hidden, DType::kF32);
  normed_ = ops.allocate(max_num_tokens, hidden, dtype);
  delta_ = ops.allocate(max_num_tokens, hidden, dtype);
  qkv_ = ops.allocate(max_num_tokens, config.q_size() + 2 * config.kv_size(), dtype);
  attention_ = ops.allocate(max_num_tokens, config.q_size(), dtype);
  gate_up_ = ops.allocate(max_num_tokens, 2 * intermediate, dtype);
  activated_ = ops.allocate(max_num_tokens, intermediate, dtype);
  logits_ = ops.allocate(max_logit_rows_, config.vocab_size, DType::kF32);
  sampled_residual_ = ops.allocate(max_num_samples, hidden, DType::kF32);
  sampled_attention_ = ops.allocate(max_num_samples, config.q_size(), dtype);
}

void Transformer::forward(int64_t num_tokens, int64_t num_samples) {
  LLMB_CHECK(num_tokens <= max_num_tokens_ && num_samples <= max_num_samples_);
  ops_.embedding(*weights_.embed_tokens, num_tokens, residual_->rows());
  const int32_t last = config_.num_hidden_layers - 1;
  for (int32_t layer = 0; layer < last; ++layer) {
    attend(layer, num_tokens);
    project_and_mlp(layer, attention_->rows(), residual_->rows(), num_tokens);
  }
  // After the last layer's keys and values nobody looks at the rows that are not sampled.
  attend(last, num_tokens);
  if (num_samples == 0) return;
  ops_.gather_sample_rows(attention_->rows(), num_samples, sampled_attention_->rows());
  ops_.gather_sample_rows(residual_->rows(), num_samples, sampled_residual_->rows());
  project_and_mlp(last, sampled_attention_->rows(), sampled_residual_->rows(), num_samples);
  sample(sampled_residual_->rows(), num_samples);
}

void Transformer::attend(int32_t layer, int64_t num_tokens) {
  const LayerWeights& w = weights_.layers[layer];
  const Rows delta = layer == 0 ? Rows() : delta_->rows();
  ops_.add_rms_norm(residual_->rows(), delta, *w.input_norm, eps_, num_tokens, normed_->rows());
  ops_.linear(*w.qkv, normed_->rows(), num_tokens, qkv_->rows());
  ops_.rope_and_kv_write(layer, num_tokens, qkv_->rows());
  ops_.paged_attention(layer, qkv_->rows(), attention_->rows());
}

void Transformer::project_and_mlp(int32_t layer, Rows attention, Rows residual, int64_t rows) {
  const LayerWeights& w = weights_.layers[layer];
  ops_.linear(*w.o, attention, rows, delta_->rows());
  ops_.add_rms_norm(residual, delta_->rows(), *w.post_attention_norm, eps_, rows, normed_->rows());
  ops_.linear(*w.gate_up, normed_->rows(), rows, gate_up_->rows());
  ops_.silu_mul(gate_up_->rows(), rows, activated_->rows());
  ops_.linear(*w.down, activated_->rows(), rows, delta_->rows());
}

void Transformer::sample(Rows residual, int64_t num_samples) {
  ops_.add_rms_norm(residual, delta_->rows(), *weights_.norm, eps_, num_samples, normed_->rows());
  for (int64_t first = 0; first < num_samples; first += max_logit_rows_) {
    const int64_t rows = std::min(max_logit_rows_, num_samples - first);
    ops_.linear(weights_.output_projection(), normed_->rows().from(first), rows, logits_->rows());
    ops_.sample(logits_->rows(), first, rows);
  }
}

}  // namespace llmb
