// Attention, or a recurrent state, of a layer: in three phases, so that a step in two parts can run the middle one of a
// part beside products of the other.
#include "model/transformer.h"

#include "base/check.h"

namespace llmb {

void Transformer::attend(int32_t layer, int64_t num_tokens) {
  prepare_mixing(layer, num_tokens);
  mix(layer);
  finish_mixing(layer, num_tokens);
}

void Transformer::forward_in_parts(int64_t num_tokens, int64_t num_samples, int32_t num_layers, StepParts& parts) {
  LLMB_CHECK(num_tokens <= max_num_tokens_ && num_samples <= max_num_samples_);
  LLMB_CHECK(link_ == nullptr && !pooling_ && !config_.mtp.is_used);
  LLMB_CHECK(parts.second_row() > 0 && parts.second_row() < num_tokens);
  const int32_t last = (num_layers > 0 ? num_layers : config_.num_hidden_layers) - 1;
  const int64_t begins[] = {0, parts.second_row(), num_tokens};
  embed(num_tokens);
  parts.begin();
  last_in_parts_ = last;
  for (int32_t layer = 0; layer <= last + 1; ++layer)
    for (const int p : {0, 1}) {
      const int64_t rows = begins[p + 1] - begins[p];
      first_row_ = begins[p];
      parts.begin_products(p);
      if (layer > 0) finish_mixing(layer - 1, rows);
      if (layer > last) continue;
      if (layer > 0) {
        project_and_mlp(layer - 1, RowKind::kTokens, mixed(layer - 1), part(residual_), rows);
        end_layer(layer - 1, layer_inputs_, part(residual_), rows);
      }
      prepare_mixing(layer, rows);
      if (config_.layer(layer).has_mixer) parts.begin_attention(p);
      mix(layer);
    }
  first_row_ = 0;
  parts.join();
  if (num_samples > 0)
    sample_behind(last, num_tokens, num_samples, heads_ && num_layers == 0 ? heads_->hidden() : normed_->rows());
  last_in_parts_ = -1;
}

void Transformer::prepare_mixing(int32_t layer, int64_t num_tokens) {
  if (!config_.layer(layer).has_mixer) {
    if (layer > 0) add_norm(part(residual_), pending(), NormWeights(), num_tokens, Rows());
    return;
  }
  if (config_.layer(layer).has_state) return prepare_state(layer, num_tokens);
  if (config_.has_latent()) return write_latents(layer, num_tokens);
  write_kv(layer, num_tokens);
  if (config_.qk_norm == QkNorm::kRotatedPerHead)
    ops_.rms_norm_groups(part(qkv_, config_.qkv_size_of(layer)), 0, config_.num_attention_heads,
                         *weights_.layers[layer].q_norm.weight, eps_, num_tokens);
}

void Transformer::mix(int32_t layer) {
  if (!config_.layer(layer).has_mixer) return;
  const LayerWeights& w = weights_.layers[layer];
  if (!config_.layer(layer).has_state) {
    const Rows out = config_.has_latent() ? part(gathered_) : mixed(layer);
    const Rows qkv = part(qkv_, config_.qkv_size_of(layer));
    ops_.paged_attention(layer, qkv, w.sinks.get(), out);
    if (config_.has_latent())
      ops_.expanded_attention(layer, w.key_heads, w.value_heads, part(queries_), qkv, mixed(layer));
    return;
  }
  const Rows qkv = part(qkv_, config_.state.conv_channels());
  if (config_.state.kind == StateKind::kShortConv)
    return ops_.causal_conv(layer, qkv, *w.conv, w.conv_bias.get(), mixed(layer));
  ops_.causal_conv(layer, qkv, *w.conv, w.conv_bias.get(), part(convolved_));
  ops_.update_states(layer, part(convolved_), part(state_gates_), *w.log_a, *w.dt_bias, w.skip.get(), mixed(layer));
}

void Transformer::finish_mixing(int32_t layer, int64_t num_tokens) {
  if (!config_.layer(layer).has_mixer) return;
  if (config_.layer(layer).has_state) return finish_state(layer, num_tokens);
  const LayerWeights& w = weights_.layers[layer];
  if (config_.has_latent()) return ops_.expand_values(w.value_heads, part(gathered_), num_tokens, mixed(layer));
  if (!config_.attention_gate) return;
  const Rows gate = part(mixed_gate_, config_.q_size());
  linear({layer, Projection::kMixedGate, RowKind::kTokens}, *w.mixed_gate, part(normed_), num_tokens, gate);
  ops_.multiply_by_gate(GateKind::kLogistic, mixed(layer), gate, num_tokens);
}

void Transformer::write_kv(int32_t layer, int64_t num_tokens) {
  const LayerWeights& w = weights_.layers[layer];
  const Rows qkv = part(qkv_, config_.qkv_size_of(layer)), normed = part(normed_);
  add_norm(part(residual_), layer == 0 ? Rows() : pending(), w.input_norm, num_tokens, normed);
  linear({layer, Projection::kQkv, RowKind::kTokens}, *w.qkv, normed, num_tokens, qkv);
  if (config_.qkv_clip > 0) ops_.clamp(qkv, static_cast<float>(config_.qkv_clip), num_tokens);
  norm_heads(layer, qkv, num_tokens);
  if (config_.query_growth.scale != 0 && config_.layer(layer).rope < 0) ops_.grow_queries(num_tokens, qkv);
  ops_.rope_and_kv_write(layer, num_tokens, qkv);
}

void Transformer::prepare_state(int32_t layer, int64_t num_tokens) {
  const LayerWeights& w = weights_.layers[layer];
  const Rows qkv = part(qkv_, config_.state.conv_channels()), normed = part(normed_), out = mixed(layer);
  add_norm(part(residual_), layer == 0 ? Rows() : pending(), w.input_norm, num_tokens, normed);
  const auto product = [&](Projection projection) { return AdaptedProduct{layer, projection, RowKind::kTokens}; };
  linear(product(Projection::kQkv), *w.qkv, normed, num_tokens, qkv);
  linear(product(Projection::kMixedGate), *w.mixed_gate, normed, num_tokens,
         part(mixed_gate_, config_.state.values_size()));
  if (config_.state.kind == StateKind::kShortConv) {
    linear(product(Projection::kStateGates), *w.conv_gate, normed, num_tokens, out);
    return ops_.multiply_by_gate(GateKind::kIdentity, qkv, out, num_tokens);
  }
  linear(product(Projection::kStateGates), *w.state_gates, normed, num_tokens, part(state_gates_));
}

void Transformer::finish_state(int32_t layer, int64_t num_tokens) {
  const LayerWeights& w = weights_.layers[layer];
  const Rows out = mixed(layer), gate = part(mixed_gate_, config_.state.values_size());
  if (config_.state.kind == StateKind::kShortConv)
    return ops_.multiply_by_gate(GateKind::kIdentity, out, gate, num_tokens);
  if (config_.state.kind == StateKind::kGatedDelta) {
    ops_.rms_norm_groups(out, 0, config_.state.num_value_heads, *w.state_norms[0], eps_, num_tokens);
    return ops_.multiply_by_gate(GateKind::kSilu, out, gate, num_tokens);
  }
  ops_.multiply_by_gate(GateKind::kSilu, out, gate, num_tokens);
  if (w.state_norms.size() == 1)
    return ops_.rms_norm_over_ranks(out, 0, config_.state.num_norms, *w.state_norms[0], eps_, num_tokens);
  for (size_t i = 0; i < w.state_norms.size(); ++i)
    ops_.rms_norm_groups(out, static_cast<int64_t>(i) * w.state_norms[i]->rows().width, 1, *w.state_norms[i], eps_,
                         num_tokens);
}

void Transformer::norm_heads(int32_t layer, Rows qkv, int64_t rows) {
  const LayerWeights& w = weights_.layers[layer];
  const int64_t q_size = config_.q_size_of(layer), kv_heads = config_.num_kv_heads_of(layer);
  if (w.v_norm.weight)
    ops_.rms_norm_groups(qkv, q_size + config_.kv_size_of(layer), kv_heads, *w.v_norm.weight, eps_, rows);
  if (!w.q_norm.weight) return;
  const int64_t q_groups = config_.num_attention_heads, k_groups = kv_heads;
  if (config_.qk_norm == QkNorm::kAllHeads) ops_.rms_norm_over_ranks(qkv, 0, 1, *w.q_norm.weight, eps_, rows);
  if (config_.qk_norm == QkNorm::kAllHeads)
    return ops_.rms_norm_over_ranks(qkv, q_size, 1, *w.k_norm.weight, eps_, rows);
  if (config_.qk_norm == QkNorm::kLayerPerHead) {
    ops_.layer_norm_groups(qkv, 0, q_groups, *w.q_norm.weight, w.q_norm.bias.get(), eps_, rows);
    ops_.layer_norm_groups(qkv, q_size, k_groups, *w.k_norm.weight, w.k_norm.bias.get(), eps_, rows);
    return;
  }
  if (config_.qk_norm != QkNorm::kRotatedPerHead) ops_.rms_norm_groups(qkv, 0, q_groups, *w.q_norm.weight, eps_, rows);
  if (w.k_norm.weight) ops_.rms_norm_groups(qkv, q_size, k_groups, *w.k_norm.weight, eps_, rows);
}

}  // namespace llmb
