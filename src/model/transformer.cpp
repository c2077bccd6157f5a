#include "model/transformer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace llmb {

namespace {

int64_t logit_rows(const ModelConfig& config, int64_t max_num_samples, int64_t max_bytes) {
  return std::clamp<int64_t>(max_bytes / (int64_t{config.vocab_size} * 4), 1, max_num_samples);
}

// How wide the widest MLP is, those of experts to choose from aside; 0: there is none.
int64_t widest_mlp(const ModelConfig& config) {
  int64_t widest = 0;
  for (int32_t i = 0; i < config.num_used_layers(); ++i)
    if (config.layer(i).has_mlp) widest = std::max(widest, mlp_size(config, i));
  return widest;
}

int64_t widest_qkv(const ModelConfig& config) {
  int64_t widest = 0;
  for (int32_t i = 0; i < config.num_used_layers(); ++i) widest = std::max(widest, config.qkv_size_of(i));
  return widest;
}

// The width of buffers in which some layers' rows are narrower: where these begin at multiples of 16 bytes, so do those of
// a step's second part.
int64_t padded(int64_t width) { return ceil_div(width, 8) * 8; }

// Rows so wide, in the memory of wider ones.
Rows narrowed(Rows rows, int64_t width) { return {rows.data, rows.dtype, width}; }

}  // namespace

Transformer::Transformer(const ModelConfig& config, ModelWeights weights, Ops& ops, int64_t max_num_tokens,
                         int64_t max_num_samples, int64_t max_logit_bytes)
    : config_(config),
      weights_(std::move(weights)),
      ops_(ops),
      eps_(static_cast<float>(config.norm_eps)),
      max_num_tokens_(max_num_tokens),
      max_num_samples_(max_num_samples),
      max_logit_rows_(logit_rows(config, max_num_samples, max_logit_bytes)) {
  const int64_t hidden = config.hidden_size, intermediate = widest_mlp(config);
  const int64_t inputs = config.hidden_size_per_layer_input;
  const DType dtype = ops.activation_dtype();
  // Several choices may sample a row, so that there may be more sample rows than tokens.
  const int64_t max_rows = std::max(max_num_tokens, max_num_samples);
  residual_ = ops.allocate(max_num_tokens, hidden, DType::kF32);
  normed_ = ops.allocate(max_rows, hidden, dtype);
  delta_ = ops.allocate(max_rows, hidden, dtype);
  const int64_t channels = config.has_states() ? config.state.conv_channels() : 0;
  qkv_ = ops.allocate(max_num_tokens, padded(std::max(widest_qkv(config), channels)), dtype);
  attention_ = ops.allocate(max_num_tokens, padded(config.mixed_size()), dtype);
  if (config.has_latent()) {
    queries_ = ops.allocate(max_num_tokens, int64_t{config.num_attention_heads} * config.latent.query_dim(), dtype);
    latents_ = ops.allocate(max_num_tokens, config.head_dim, dtype);
    gathered_ = ops.allocate(max_num_tokens, config.gathered_size_of(0), dtype);
    if (config.latent.query_rank > 0)
      short_queries_ = ops.allocate(max_num_tokens, config.latent.query_rank, dtype);
  }
  if (config.attention_gate || channels > 0) mixed_gate_ = ops.allocate(max_num_tokens, padded(config.mixed_size()), dtype);
  if (config.state.gates_size() > 0) {
    convolved_ = ops.allocate(max_num_tokens, channels, dtype);
    state_gates_ = ops.allocate(max_num_tokens, config.state.gates_size(), DType::kF32);
  }
  if (intermediate > 0) {
    gate_up_ = ops.allocate(max_rows, padded((config.activation.gated ? 2 : 1) * intermediate), dtype);
    activated_ = ops.allocate(max_rows, padded(intermediate), dtype);
  }
  if (config.experts.num_experts > 0) router_logits_ = ops.allocate(max_rows, config.experts.num_experts, DType::kF32);
  if (config.experts.shared_intermediate_size > 0 || config.experts.beside_dense)
    shared_ = ops.allocate(max_rows, hidden, dtype);
  if (config.experts.shared_gate) shared_gates_ = ops.allocate(max_rows, 1, DType::kF32);
  logits_ = ops.allocate(max_logit_rows_, config.vocab_size, DType::kF32);
  sampled_residual_ = ops.allocate(max_num_samples, hidden, DType::kF32);
  sampled_attention_ = ops.allocate(max_num_samples, config.mixed_size(), dtype);
  if (config.mtp.is_used) hidden_ = ops.allocate(max_num_tokens, hidden, dtype);
  for (size_t i = 0; config.mtp.takes_states() && i < states_.size(); ++i)  // none of later stages
    if (config.mtp.state_layers[i] < config.num_hidden_layers)
      states_[i] = ops.allocate(max_num_tokens, hidden, dtype);
  if (config.mtp.is_used && config.mtp.takes_states()) {
    hidden_qkv_ = ops.allocate(max_num_tokens, config.qkv_size_of(config.num_hidden_layers), dtype);
    if (const auto count = static_cast<int64_t>(weights_.mtp.head_tokens.size()); count > 0)
      head_logits_ = ops.allocate(max_logit_rows_, count, DType::kF32);
  }
  if (inputs > 0) {
    layer_inputs_ = ops.allocate(max_num_tokens, inputs * config.num_hidden_layers, DType::kF32);
    projected_inputs_ = ops.allocate(max_num_tokens, inputs * weights_.num_layer_inputs, dtype);
    sampled_inputs_ = ops.allocate(max_num_samples, inputs * config.num_hidden_layers, DType::kF32);
    input_gates_ = ops.allocate(max_rows, inputs, dtype);
    gated_inputs_ = ops.allocate(max_rows, inputs, dtype);
  }
}

void Transformer::forward(int64_t num_tokens, int64_t num_samples, int32_t num_layers) {
  LLMB_CHECK(num_tokens <= max_num_tokens_ && num_samples <= max_num_samples_);
  if (is_first_stage()) embed(num_tokens);
  else if (link_ != nullptr)
    for (const Rows stream : received()) link_->receive(stream, num_tokens);
  const int32_t count = num_layers == 0 ? config_.num_hidden_layers
                                        : std::clamp(num_layers - first_layer_, 0, config_.num_hidden_layers);
  if (layer_inputs_ && !is_first_stage() && count > 0) embed_layer_inputs(num_tokens);
  if (!is_last_stage_) return forward_and_send(num_tokens, count);
  if (count == 0) return sample_received(num_tokens, num_samples);
  const int32_t last = count - 1;
  const int32_t narrowed = first_reader();
  for (int32_t layer = 0; layer < last; ++layer) {
    if (layer == narrowed && (num_tokens = narrow(num_tokens, num_samples)) == 0) return;
    attend(layer, num_tokens);
    keep_state(layer, num_tokens);
    project_and_mlp(layer, RowKind::kTokens, mixed(layer), residual_->rows(), num_tokens);
    end_layer(layer, layer_inputs_, residual_->rows(), num_tokens);
  }
  attend(last, num_tokens);
  keep_state(last, num_tokens);
  const bool keeps_hidden = heads_ && num_layers == 0;
  const Rows hidden = keeps_hidden ? heads_->hidden() : normed_->rows();
  if (config_.mtp.is_used && num_layers == 0) return sample_and_remember(num_tokens, num_samples, hidden);
  if (num_samples == 0) return;
  if (pooling_ && pooling_->kind() != PoolingKind::kLast) {
    project_and_mlp(last, RowKind::kTokens, mixed(last), residual_->rows(), num_tokens);
    end_layer(last, layer_inputs_, residual_->rows(), num_tokens);
    return pool(residual_->rows(), num_tokens, num_samples);
  }
  sample_behind(last, num_tokens, num_samples, hidden);
}

// After the last layer's keys and values nobody looks at the rows that are not sampled.
void Transformer::sample_behind(int32_t last, int64_t num_tokens, int64_t num_samples, Rows hidden) {
  const Rows residual = sampled_residual_->rows(), sampled = narrowed(sampled_attention_->rows(), mixed_size(last));
  if (config_.layer(last).has_mixer)
    ops_.gather_sample_rows(mixed(last), num_samples, sampled);
  ops_.complete_rows(residual_->rows(), num_tokens);
  ops_.gather_sample_rows(residual_->rows(), num_samples, residual);
  if (layer_inputs_) ops_.gather_sample_rows(layer_inputs_->rows(), num_samples, sampled_inputs_->rows());
  project_and_mlp(last, RowKind::kSamples, sampled, residual, num_samples);
  end_layer(last, sampled_inputs_, residual, num_samples);
  if (pooling_) return pool(residual, num_samples, num_samples);
  add_norm(residual, pending(), weights_.norm, num_samples, hidden);
  sample(hidden, num_samples, weights_.output_projection());
}

void Transformer::be_stage(int32_t first_layer, bool is_last, StageLink* link) {
  first_layer_ = first_layer, is_last_stage_ = is_last, link_ = link;
  if (layer_inputs_ && !(is_first_stage() && is_last))
    embedded_ = ops_.allocate(max_num_tokens_, config_.hidden_size, ops_.activation_dtype());
}

std::vector<Rows> Transformer::streams_before(int32_t layer) const {
  std::vector<Rows> streams = {residual_->rows()};
  for (size_t i = 0; config_.mtp.takes_states() && i < states_.size(); ++i)
    if (config_.mtp.state_layers[i] < layer) streams.push_back(states_[i]->rows());
  if (embedded_) streams.push_back(embedded_->rows());
  return streams;
}

void Transformer::forward_and_send(int64_t num_tokens, int32_t num_layers) {
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    attend(layer, num_tokens);
    keep_state(layer, num_tokens);
    project_and_mlp(layer, RowKind::kTokens, mixed(layer), residual_->rows(), num_tokens);
    end_layer(layer, layer_inputs_, residual_->rows(), num_tokens);
  }
  if (num_layers > 0)
    ops_.add(residual_->rows(), pending(), static_cast<float>(config_.residual_multiplier), num_tokens, Rows());
  if (link_ == nullptr) return;
  for (const Rows stream : sent()) link_->send(stream, num_tokens);
}

void Transformer::sample_received(int64_t num_tokens, int64_t num_samples) {
  if (num_samples == 0) return;
  const Rows residual = sampled_residual_->rows();
  ops_.complete_rows(residual_->rows(), num_tokens);
  ops_.gather_sample_rows(residual_->rows(), num_samples, residual);
  add_norm(residual, Rows(), weights_.norm, num_samples, normed_->rows());
  sample(normed_->rows(), num_samples, weights_.output_projection());
}

void Transformer::give_vectors(PoolingHead head) {
  head.allocate(config_, ops_, max_num_samples_);
  pooling_ = std::move(head);
}

void Transformer::pool(Rows residual, int64_t num_rows, int64_t num_samples) {
  add_norm(residual, pending(), weights_.norm, num_rows, normed_->rows());
  pooling_->forward(normed_->rows(), num_samples, ops_);
}

void Transformer::add_heads(std::vector<MedusaHead> heads) {
  heads_ = std::make_unique<MedusaHeads>(config_, std::move(heads), ops_, max_num_samples_);
}

void Transformer::forward_heads(int64_t num_tokens, int64_t num_samples) {
  LLMB_CHECK(heads_ && num_tokens <= max_num_samples_);
  heads_->forward(num_tokens, num_samples, logits_->rows(), max_logit_rows_);
}

void Transformer::embed(int64_t num_tokens) {
  const Rows residual = residual_->rows();
  ops_.embedding(*weights_.embed_tokens, num_tokens, residual);
  if (ops_.has_adapters()) ops_.lora_embedding(num_tokens, residual);
  if (config_.embedding_multiplier != 1)
    ops_.scale(residual, static_cast<float>(config_.embedding_multiplier), num_tokens);
  if (weights_.embed_positions) ops_.add_positions(*weights_.embed_positions, num_tokens, residual);
  if (weights_.embed_types) ops_.add_token_types(*weights_.embed_types, num_tokens, residual);
  if (config_.embedding_norm) add_norm(residual, Rows(), weights_.embedding_norm, num_tokens, residual);
  if (!layer_inputs_) return;
  ops_.add(residual, Rows(), 1, num_tokens, embedded());
  embed_layer_inputs(num_tokens);
}

// For each layer, (what the table says + the normalised product with the embedding) / √2. The product's factor of
// 1 / √hidden_size is in the norm's epsilon.
void Transformer::embed_layer_inputs(int64_t num_tokens) {
  const Rows inputs = layer_inputs_->rows(), projected = projected_inputs_->rows();
  const double half = std::sqrt(0.5);
  const int64_t size = config_.hidden_size_per_layer_input, first_column = first_layer_ * size;
  ops_.embedding(*weights_.embed_layer_inputs, num_tokens, inputs);
  ops_.scale(inputs, static_cast<float>(half * std::sqrt(static_cast<double>(size))), num_tokens);
  ops_.linear(*weights_.project_layer_inputs, embedded(), num_tokens, projected);
  ops_.rms_norm_groups(projected, first_column, config_.num_hidden_layers, *weights_.layer_inputs_norm.weight,
                       eps_ * static_cast<float>(config_.hidden_size), num_tokens);
  ops_.add_columns(inputs, projected, first_column, static_cast<float>(half), num_tokens);
  ops_.complete_rows(inputs, num_tokens);  // each rank computes all rows of layers, with their inputs
}

void Transformer::project_and_mlp(int32_t layer, RowKind kind, Rows attention, Rows residual, int64_t rows) {
  const LayerWeights& w = weights_.layers[layer];
  const Rows delta = part(delta_), normed = part(normed_);
  if (!config_.layer(layer).has_mixer) {
    add_norm(residual, Rows(), w.mlp_norm, rows, normed);
    return mlp(layer, kind, residual, rows);
  }
  linear({layer, Projection::kO, kind}, *w.o, attention, rows, delta);
  if (!config_.layer(layer).has_mlp) return;
  if (config_.residual == ResidualKind::kNormedSum) {
    add_norm(residual, delta, w.attention_post_norm, rows, residual);
    ops_.add(residual, Rows(), 1, rows, normed);
    mlp(layer, kind, residual, rows);
    return add_norm(residual, delta, w.mlp_post_norm, rows, residual);
  }
  post_norm(delta, w.attention_post_norm, rows);
  if (config_.residual == ResidualKind::kSequential) {
    add_norm(residual, delta, w.mlp_norm, rows, normed);
  } else {  // the MLP does not see what attention gave
    const bool is_shared = config_.residual == ResidualKind::kParallelSharedNorm;
    add_norm(residual, Rows(), is_shared ? w.input_norm : w.mlp_norm, rows, normed);
    ops_.add(residual, delta, static_cast<float>(config_.residual_multiplier), rows, Rows());
  }
  mlp(layer, kind, residual, rows);
  post_norm(delta, w.mlp_post_norm, rows);
}

void Transformer::mlp(int32_t layer, RowKind kind, Rows residual, int64_t rows) {
  const LayerWeights& w = weights_.layers[layer];
  if (!w.experts) return dense_mlp(layer, kind, rows, part(delta_));
  const Rows normed = part(normed_), delta = part(delta_);
  if (config_.experts.beside_dense) {
    dense_mlp(layer, kind, rows, part(shared_));
    post_norm(part(shared_), w.dense_post_norm, rows);
    add_norm(residual, Rows(), w.router_norm, rows, normed);
  }
  linear({layer, Projection::kRouter, kind}, *w.router, normed, rows, part(router_logits_));
  if (config_.experts.beside_dense) add_norm(residual, Rows(), w.experts_norm, rows, normed);
  ops_.mix_experts({layer, Projection::kGateUp, kind}, *w.experts, config_.experts, config_.activation,
                   part(router_logits_), w.choice_bias.get(), w.expert_scales.get(), normed, rows, delta);
  if (config_.experts.beside_dense) {
    post_norm(delta, w.experts_post_norm, rows);
    ops_.add_gated(delta, part(shared_), Rows(), rows);
  } else if (w.down) {
    add_shared_expert(layer, kind, rows);
  }
}

void Transformer::dense_mlp(int32_t layer, RowKind kind, int64_t rows, Rows out) {
  const LayerWeights& w = weights_.layers[layer];
  const Rows normed = part(normed_);
  const int64_t width = w.experts && !config_.experts.beside_dense ? config_.experts.shared_intermediate_size
                                                                   : config_.intermediate_size_of(layer);
  const Rows gate_up = part(gate_up_, (config_.activation.gated ? 2 : 1) * width);
  const Rows activated = part(activated_, width);
  if (ops_.has_adapters() && layer < config_.num_hidden_layers) {
    const AdaptedProduct product{layer, Projection::kGateUp, kind};
    ops_.adapted_linear_activate(product, *w.gate_up, config_.activation, normed, rows, gate_up, activated);
  } else {
    ops_.linear_activate(*w.gate_up, config_.activation, normed, rows, gate_up, activated);
  }
  linear({layer, Projection::kDown, kind}, *w.down, activated, rows, out);
}

void Transformer::end_layer(int32_t layer, const std::unique_ptr<DeviceBuffer>& inputs, Rows residual, int64_t rows) {
  const LayerWeights& w = weights_.layers[layer];
  const Rows delta = part(delta_), normed = part(normed_);
  if (inputs) {
    const Rows gates = part(input_gates_), gated = part(gated_inputs_);
    ops_.add(residual, delta, static_cast<float>(config_.residual_multiplier), rows, normed);
    ops_.linear(*w.input_gate, normed, rows, gates);
    ops_.activate_times(config_.activation.kind, gates, part(inputs), layer * gates.width, rows, gated);
    ops_.linear(*w.input_projection, gated, rows, delta);
    post_norm(delta, w.input_post_norm, rows);
  }
  if (w.scalar) ops_.add_scaled(residual, delta, *w.scalar, rows);
}

void Transformer::linear(const AdaptedProduct& product, const LinearWeight& weight, Rows x, int64_t rows, Rows out) {
  const bool may_be_adapted = product.layer < config_.num_hidden_layers;
  if (may_be_adapted && ops_.has_adapters()) ops_.adapted_linear(product, weight, x, rows, out);
  else ops_.linear(weight, x, rows, out);
}

void Transformer::add_shared_expert(int32_t layer, RowKind kind, int64_t rows) {
  const LayerWeights& w = weights_.layers[layer];
  dense_mlp(layer, kind, rows, part(shared_));
  Rows gates;
  if (w.shared_gate) {
    gates = part(shared_gates_);
    linear({layer, Projection::kSharedGate, kind}, *w.shared_gate, part(normed_), rows, gates);
  }
  ops_.add_gated(part(delta_), part(shared_), gates, rows);
}

void Transformer::sample(Rows hidden, int64_t num_samples, const LinearWeight& lm_head) {
  for (int64_t first = 0; first < num_samples; first += max_logit_rows_) {
    const int64_t rows = std::min(max_logit_rows_, num_samples - first);
    const Rows logits = logits_->rows();
    if (head_logits_ && &lm_head == weights_.mtp.lm_head.get()) {
      ops_.linear(lm_head, hidden.from(first), rows, head_logits_->rows());
      ops_.spread_logits(head_logits_->rows(), weights_.mtp.head_tokens, rows, logits);
    } else {
      const AdaptedProduct product{config_.num_hidden_layers - 1, Projection::kLmHead, RowKind::kSamples, first};
      linear(product, lm_head, hidden.from(first), rows, logits);
    }
    if (config_.logit_multiplier != 1) ops_.scale(logits, static_cast<float>(config_.logit_multiplier), rows);
    if (config_.logit_softcap > 0) ops_.softcap(logits, static_cast<float>(config_.logit_softcap), rows);
    ops_.sample(logits, first, rows);
  }
}

void Transformer::add_norm(Rows residual, Rows delta, const NormWeights& norm, int64_t rows, Rows out) {
  const auto factor = static_cast<float>(config_.residual_multiplier);
  if (!norm.weight) return ops_.add(residual, delta, factor, rows, out);
  if (delta.data != nullptr && factor != 1) {
    ops_.add(residual, delta, factor, rows, Rows());
    delta = Rows();
  }
  if (config_.norm == NormKind::kRms) {
    ops_.add_rms_norm(residual, delta, *norm.weight, eps_, rows, out);
  } else {
    ops_.add_layer_norm(residual, delta, *norm.weight, norm.bias.get(), eps_, rows, out);
  }
}

void Transformer::post_norm(Rows x, const NormWeights& norm, int64_t rows) {
  if (norm.weight) ops_.rms_norm_groups(x, 0, 1, *norm.weight, eps_, rows);
}

}  // namespace llmb
