#include "model/transformer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace llmb {

namespace {

// Large enough that a decode batch of 100 rows reads the LM head once, small beside the weights.
constexpr int64_t kMaxLogitBytes = int64_t{64} << 20;

int64_t logit_rows(const ModelConfig& config, int64_t max_num_samples) {
  const int64_t fitting = kMaxLogitBytes / (int64_t{config.vocab_size} * 4);
  return std::clamp<int64_t>(fitting, 1, max_num_samples);
}

}  // namespace

Transformer::Transformer(const ModelConfig& config, ModelWeights weights, Ops& ops, int64_t max_num_tokens,
                         int64_t max_num_samples)
    : config_(config),
      weights_(std::move(weights)),
      ops_(ops),
      eps_(static_cast<float>(config.rms_norm_eps)),
      max_num_tokens_(max_num_tokens),
      max_num_samples_(max_num_samples),
      max_logit_rows_(logit_rows(config, max_num_samples)) {
  const int64_t hidden = config.hidden_size, intermediate = config.intermediate_size;
  residual_ = ops.allocate(max_num_tokens * hidden);
  normed_ = ops.allocate(max_num_tokens * hidden);
  delta_ = ops.allocate(max_num_tokens * hidden);
  qkv_ = ops.allocate(max_num_tokens * (config.q_size() + 2 * config.kv_size()));
  attention_ = ops.allocate(max_num_tokens * config.q_size());
  gate_up_ = ops.allocate(max_num_tokens * 2 * intermediate);
  activated_ = ops.allocate(max_num_tokens * intermediate);
  logits_ = ops.allocate(max_logit_rows_ * config.vocab_size);
  sampled_residual_ = ops.allocate(max_num_samples * hidden);
  sampled_attention_ = ops.allocate(max_num_samples * config.q_size());
}

void Transformer::forward(const StepPlan& plan, StepOutput* output) {
  const int64_t num_tokens = plan.num_tokens(), num_samples = plan.num_samples();
  LLMB_CHECK(num_tokens <= max_num_tokens_ && num_samples <= max_num_samples_);
  ops_.begin_step(plan);
  ops_.embedding(*weights_.embed_tokens, residual_->data());
  const int32_t last = config_.num_hidden_layers - 1;
  for (int32_t layer = 0; layer < last; ++layer) {
    attend(layer, num_tokens);
    project_and_mlp(layer, attention_->data(), residual_->data(), num_tokens);
  }
  // After the last layer's keys and values nobody looks at the rows that are not sampled.
  attend(last, num_tokens);
  if (num_samples > 0) {
    ops_.gather_sample_rows(attention_->data(), config_.q_size(), sampled_attention_->data());
    ops_.gather_sample_rows(residual_->data(), config_.hidden_size, sampled_residual_->data());
    project_and_mlp(last, sampled_attention_->data(), sampled_residual_->data(), num_samples);
    sample(sampled_residual_->data(), num_samples);
  }
  ops_.end_step(output);
}

void Transformer::attend(int32_t layer, int64_t num_tokens) {
  const LayerWeights& w = weights_.layers[layer];
  const float* delta = layer == 0 ? nullptr : delta_->data();
  ops_.add_rms_norm(residual_->data(), delta, w.input_norm->data(), eps_, num_tokens, normed_->data());
  ops_.linear(*w.qkv, normed_->data(), num_tokens, qkv_->data());
  ops_.rope_and_kv_write(layer, qkv_->data());
  ops_.paged_attention(layer, qkv_->data(), attention_->data());
}

void Transformer::project_and_mlp(int32_t layer, const float* attention, float* residual, int64_t rows) {
  const LayerWeights& w = weights_.layers[layer];
  ops_.linear(*w.o, attention, rows, delta_->data());
  ops_.add_rms_norm(residual, delta_->data(), w.post_attention_norm->data(), eps_, rows, normed_->data());
  ops_.linear(*w.gate_up, normed_->data(), rows, gate_up_->data());
  ops_.silu_mul(gate_up_->data(), rows, activated_->data());
  ops_.linear(*w.down, activated_->data(), rows, delta_->data());
}

void Transformer::sample(float* residual, int64_t num_samples) {
  ops_.add_rms_norm(residual, delta_->data(), weights_.norm->data(), eps_, num_samples, normed_->data());
  for (int64_t first = 0; first < num_samples; first += max_logit_rows_) {
    const int64_t rows = std::min(max_logit_rows_, num_samples - first);
    ops_.linear(weights_.output_projection(), normed_->data() + first * config_.hidden_size, rows, logits_->data());
    ops_.sample(logits_->data(), first, rows);
  }
}

}  // namespace llmb
