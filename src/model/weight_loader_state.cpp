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
        .add(slice_rows(both.weights[0], i * d, d),
             c_.qkv_bias ? slice_vector(both.biases[0], i * d, d) : TensorView(), c_.qkv_bias);
  qkv.weights.insert(qkv.weights.end(), kv.weights.begin(), kv.weights.end());
  qkv.biases.insert(qkv.biases.end(), kv.biases.begin(), kv.biases.end());
  layer->mixed_gate = maker_.make_linear(gate.weights, gate.biases, WeightRole::kProjection);
  layer->qkv = make(qkv);
}

// One matrix each of q, k, v together, of their gate, of rates and of decays; or two, in which a key head's rows of all of
// them, and of both, lie together.
void Loader::load_state_inputs(const std::string& prefix, LayerWeights* layer) {
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

void Loader::load_state_layer(const std::string& layer_prefix, LayerWeights* layer) {
  const StateConfig& s = c_.state;
  const std::string prefix = layer_prefix + "linear_attn.";
  load_state_inputs(prefix, layer);
  const TensorView conv = reader_.transposed(reader_.tensor(prefix + "conv1d.weight", {s.conv_channels(), 1, s.conv_width}));
  layer->conv = make_vector({conv.data, conv.dtype, 1, s.conv_channels() * s.conv_width});
  layer->log_a = vector(prefix + "A_log", s.num_value_heads);
  layer->dt_bias = vector(prefix + "dt_bias", s.num_value_heads);
  layer->state_norm = vector(prefix + "norm.weight", s.value_dim);
  Parts o;
  add_projection(prefix, "out_proj", c_.hidden_size, s.values_size(), false, &o);
  layer->o = make(o);
}

}  // namespace llmb
