// Layers with a recurrent state, and attention whose output is gated, as the Qwen models with both store them.
#include <string>

#include "model/weight_loader.h"

namespace llmb {

// The rows of a head's q, then those of its gate.
void Loader::load_gated_qkv(const std::string& prefix, LayerWeights* layer) {
  const int64_t d = c_.head_dim, hidden = c_.hidden_size;
  Parts both, kv, qkv, gate;
  add_projection(prefix, names_.q, 2 * c_.q_size(), hidden, c_.qkv_bias, &both);
  add_projection(prefix, names_.k, c_.kv_size(), hidden, c_.qkv_bias, &kv);
  add_projection(prefix, names_.v, c_.kv_size(), hidden, c_.qkv_bias, &kv);
  if (!reader_.status().ok()) return;
  for (int64_t i = 0; i < 2 * c_.num_attention_heads; ++i)
    (i % 2 == 0 ? qkv : gate)
        .add(slice_rows(both.weights[0], i * d, d), c_.qkv_bias ? slice_vector(both.biases[0], i * d, d) : TensorView(),
             c_.qkv_bias);
  qkv.weights.insert(qkv.weights.end(), kv.weights.begin(), kv.weights.end());
  qkv.biases.insert(qkv.biases.end(), kv.biases.begin(), kv.biases.end());
  layer->mixed_gate = maker_.make_linear(gate.weights, gate.biases, WeightRole::kProjection);
  layer->qkv = make(qkv);
}

// One matrix each of q, k, v together, of their gate, of rates and of decays; or two, in which a key head's rows of all
// of them, and of both, lie together.
void Loader::load_delta_inputs(const std::string& prefix, LayerWeights* layer) {
  const StateConfig& s = c_.state;
  const int64_t hidden = c_.hidden_size, group = s.num_value_heads / s.num_key_heads;
  if (!reader_.has(prefix + "in_proj_qkvz.weight")) {
    Parts qkv, gate, gates;
    add_projection(prefix, "in_proj_qkv", s.conv_channels(), hidden, false, &qkv);
    layer->qkv = make(qkv);
    add_projection(prefix, "in_proj_z", s.values_size(), hidden, false, &gate);
    layer->mixed_gate = make(gate);
    add_projection(prefix, "in_proj_b", s.num_value_heads, hidden, false, &gates);
    add_projection(prefix, "in_proj_a", s.num_value_heads, hidden, false, &gates);
    layer->state_gates = make(gates, WeightRole::kSmall);
    return;
  }
  const int64_t values = group * s.value_dim, rows = 2 * s.key_dim + 2 * values;
  const TensorView all = reader_.tensor(prefix + "in_proj_qkvz.weight", {s.num_key_heads * rows, hidden});
  const TensorView small = reader_.tensor(prefix + "in_proj_ba.weight", {2 * int64_t{s.num_value_heads}, hidden});
  if (!reader_.status().ok()) return;
  const auto each_group = [&](const TensorView& matrix, int64_t stride, int64_t first, int64_t count, Parts* to) {
    for (int64_t g = 0; g < s.num_key_heads; ++g) to->add(slice_rows(matrix, g * stride + first, count), {}, false);
  };
  Parts qkv, gate, gates;
  each_group(all, rows, 0, s.key_dim, &qkv);
  each_group(all, rows, s.key_dim, s.key_dim, &qkv);
  each_group(all, rows, 2 * s.key_dim, values, &qkv);
  each_group(all, rows, 2 * s.key_dim + values, values, &gate);
  each_group(small, 2 * group, 0, group, &gates);
  each_group(small, 2 * group, group, group, &gates);
  layer->qkv = maker_.make_linear(qkv.weights, qkv.biases, WeightRole::kProjection);
  layer->mixed_gate = maker_.make_linear(gate.weights, gate.biases, WeightRole::kProjection);
  layer->state_gates = make(gates, WeightRole::kSmall);
}

// Rows of a convolution's channels in the order q, k, v: kMamba2 stores v, k, q.
std::vector<TensorView> Loader::rows_in_order(const TensorView& rows) {
  if (c_.state.kind != StateKind::kMamba2) return {rows};
  const int64_t values = c_.state.values_size(), keys = c_.state.keys_size();
  return {slice_rows(rows, values + keys, keys), slice_rows(rows, values, keys), slice_rows(rows, 0, values)};
}

void Loader::load_conv(const std::string& name, LayerWeights* layer) {
  const int64_t channels = c_.state.conv_channels(), width = c_.state.conv_width;
  const TensorView stored = reader_.tensor(name + ".weight", {channels, 1, width});
  const TensorView bias = c_.state.conv_bias ? reader_.tensor(name + ".bias", {channels}) : TensorView();
  if (!reader_.status().ok()) return;
  std::vector<TensorView> rows, biases;
  for (const TensorView& part : rows_in_order({stored.data, stored.dtype, channels, width}))
    for (int64_t j = 0; j < part.rows; ++j)
      rows.push_back(slice_vector({part.data, part.dtype, part.rows, width}, j * width, width));
  const TensorView in_order = reader_.joined(rows);  // [channels, width]
  const TensorView turned = reader_.transposed({in_order.data, in_order.dtype, channels, width});
  if (c_.state.conv_bias)
    for (const TensorView& part : rows_in_order({bias.data, bias.dtype, channels, 1}))
      biases.push_back({part.data, part.dtype, 1, part.rows});
  const TensorView all_biases = c_.state.conv_bias ? reader_.joined(biases) : TensorView();
  if (!reader_.status().ok()) return;
  layer->conv = maker_.make_vector({turned.data, turned.dtype, 1, channels * width});
  if (c_.state.conv_bias) layer->conv_bias = maker_.make_vector(all_biases);
  reader_.release();
}

void Loader::load_delta(const std::string& prefix, LayerWeights* layer) {
  load_delta_inputs(prefix, layer);
  load_conv(prefix + "conv1d", layer);
  layer->log_a = vector(prefix + "A_log", c_.state.num_value_heads);
  layer->dt_bias = vector(prefix + "dt_bias", c_.state.num_value_heads);
  layer->state_norms.push_back(vector(prefix + "norm.weight", c_.state.value_dim));
}

// One matrix of gate, convolution's inputs and steps.
void Loader::load_mamba2(const std::string& prefix, LayerWeights* layer) {
  const StateConfig& s = c_.state;
  const int64_t values = s.values_size(), channels = s.conv_channels(), heads = s.num_value_heads;
  const TensorView all = reader_.tensor(prefix + "in_proj.weight", {values + channels + heads, c_.hidden_size});
  if (!reader_.status().ok()) return;
  const std::vector<TensorView> gate = {slice_rows(all, 0, values)},
                                gates = {slice_rows(all, values + channels, heads)};
  layer->qkv = maker_.make_linear(rows_in_order(slice_rows(all, values, channels)), {}, WeightRole::kProjection);
  layer->mixed_gate = maker_.make_linear(gate, {}, WeightRole::kProjection);
  layer->state_gates = maker_.make_linear(gates, {}, WeightRole::kSmall);
  reader_.release();
  load_conv(prefix + "conv1d", layer);
  layer->log_a = vector(prefix + "A_log", heads);
  layer->dt_bias = vector(prefix + "dt_bias", heads);
  layer->skip = vector(prefix + "D", heads);
  const TensorView norm = reader_.tensor(prefix + "norm.weight", {values});
  if (!reader_.status().ok()) return;
  const int64_t width = values / s.num_norms;
  for (int64_t i = 0; i < s.num_norms; ++i)
    layer->state_norms.push_back(maker_.make_vector(slice_vector(norm, i * width, width)));
  reader_.release();
}

// One matrix of the gates of the convolution's input and of its output, and of the input.
void Loader::load_short_conv(const std::string& prefix, LayerWeights* layer) {
  const int64_t hidden = c_.hidden_size;
  const TensorView all = reader_.tensor(prefix + "in_proj.weight", {3 * hidden, hidden});
  if (!reader_.status().ok()) return;
  std::unique_ptr<LinearWeight>* const made[] = {&layer->conv_gate, &layer->mixed_gate, &layer->qkv};
  for (int64_t i = 0; i < 3; ++i) {
    const TensorView part = slice_rows(all, i * hidden, hidden);
    *made[i] = maker_.make_linear({&part, 1}, {}, WeightRole::kProjection);
  }
  reader_.release();
  load_conv(prefix + "conv", layer);
}

void Loader::load_state_layer(const std::string& prefix, LayerWeights* layer) {
  const struct {
    StateKind kind;
    const char* folder;
    void (Loader::*load)(const std::string&, LayerWeights*);
  } kinds[] = {{StateKind::kGatedDelta, "linear_attn.", &Loader::load_delta},
               {StateKind::kMamba2, names_.mamba2, &Loader::load_mamba2},
               {StateKind::kShortConv, "conv.", &Loader::load_short_conv}};
  for (const auto& [kind, folder, load] : kinds) {
    if (kind != c_.state.kind) continue;
    (this->*load)(prefix + folder, layer);
    Parts o;
    add_projection(prefix + folder, "out_proj", c_.hidden_size, c_.state.values_size(), false, &o);
    layer->o = make(o);
  }
}

}  // namespace llmb
