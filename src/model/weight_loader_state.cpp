// Layers with a recurrent state, and attention whose output is gated, as the Qwen models with both store them.
#include <algorithm>
#include <string>
#include <utility>

#include "model/weight_loader.h"

namespace llmb {

// The rows of a head's q, then those of its gate.
void Loader::load_gated_qkv(const std::string& prefix, LayerWeights* layer) {
  const int64_t d = c_.head_dim, hidden = c_.hidden_size;
  Parts both, k, v, qkv, gate;
  add_projection(prefix, names_.q, 2 * c_.q_size(), hidden, c_.qkv_bias, &both);
  add_projection(prefix, names_.k, c_.kv_size(), hidden, c_.qkv_bias, &k);
  add_projection(prefix, names_.v, c_.kv_size(), hidden, c_.qkv_bias, &v);
  if (!reader_.status().ok()) return;
  for (int64_t i = 2 * share_.q_heads.begin; i < 2 * share_.q_heads.end; ++i)
    (i % 2 == 0 ? qkv : gate)
        .add(slice_rows(both.weights[0], i * d, d), c_.qkv_bias ? slice_vector(both.biases[0], i * d, d) : TensorView(),
             c_.qkv_bias);
  for (const Parts* const part : {&k, &v}) {
    const Parts own = rows_of(*part, {share_.kv_heads.begin * d, share_.kv_heads.end * d});
    qkv.weights.insert(qkv.weights.end(), own.weights.begin(), own.weights.end());
    qkv.biases.insert(qkv.biases.end(), own.biases.begin(), own.biases.end());
  }
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
    Parts rates, decays;
    add_projection(prefix, "in_proj_qkv", s.conv_channels(), hidden, false, &qkv);
    if (!reader_.status().ok()) return;
    qkv.weights = rows_in_order(qkv.weights[0]);
    layer->qkv = make(qkv);
    add_projection(prefix, "in_proj_z", s.values_size(), hidden, false, &gate);
    layer->mixed_gate = make(rows_of(gate, state_columns()));
    add_projection(prefix, "in_proj_b", s.num_value_heads, hidden, false, &rates);
    add_projection(prefix, "in_proj_a", s.num_value_heads, hidden, false, &decays);
    gates = rows_of(rates, share_.state_values);
    const Parts others = rows_of(decays, share_.state_values);
    gates.weights.insert(gates.weights.end(), others.weights.begin(), others.weights.end());
    layer->state_gates = make(gates, WeightRole::kSmall);
    return;
  }
  const int64_t values = group * s.value_dim, rows = 2 * s.key_dim + 2 * values;
  const TensorView all = reader_.tensor(prefix + "in_proj_qkvz.weight", {s.num_key_heads * rows, hidden});
  const TensorView small = reader_.tensor(prefix + "in_proj_ba.weight", {2 * int64_t{s.num_value_heads}, hidden});
  if (!reader_.status().ok()) return;
  const auto each_group = [&](const TensorView& matrix, int64_t stride, int64_t first, int64_t count, Parts* to) {
    for (int64_t g = share_.state_keys.begin; g < share_.state_keys.end; ++g)
      to->add(slice_rows(matrix, g * stride + first, count), {}, false);
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

Range Loader::state_columns() const {
  const int64_t width = c_.state.kind == StateKind::kShortConv ? 1 : c_.state.value_dim;
  return {share_.state_values.begin * width, share_.state_values.end * width};
}

std::unique_ptr<DeviceBuffer> Loader::state_vector(const std::string& name) {
  const TensorView all = reader_.tensor(name, {c_.state.num_value_heads});
  if (!reader_.status().ok()) return nullptr;
  return make_vector(slice_vector(all, share_.state_values.begin, share_.state_values.count()));
}

// Rows of a convolution's channels in the order q, k, v: kMamba2 stores v, k, q. Of a rank, those of its heads.
std::vector<TensorView> Loader::rows_in_order(const TensorView& rows) {
  const int64_t values = c_.state.values_size(), keys = c_.state.keys_size(), key_dim = c_.state.key_dim;
  const bool is_turned = c_.state.kind == StateKind::kMamba2;
  if (!is_rank_ && !is_turned) return {rows};
  const Range own_keys = {share_.state_keys.begin * key_dim, share_.state_keys.end * key_dim}, own = state_columns();
  const int64_t q = is_turned ? values + keys : 0, k = is_turned ? values : keys, v = is_turned ? 0 : 2 * keys;
  std::vector<TensorView> parts;
  for (const int64_t first : {q, k})
    if (own_keys.count() > 0) parts.push_back(slice_rows(rows, first + own_keys.begin, own_keys.count()));
  parts.push_back(slice_rows(rows, v + own.begin, own.count()));
  return parts;
}

void Loader::load_conv(const std::string& name, LayerWeights* layer) {
  const int64_t all_channels = c_.state.conv_channels(), width = c_.state.conv_width;
  const TensorView stored = reader_.tensor(name + ".weight", {all_channels, 1, width});
  const TensorView bias = c_.state.conv_bias ? reader_.tensor(name + ".bias", {all_channels}) : TensorView();
  if (!reader_.status().ok()) return;
  std::vector<TensorView> rows, biases;
  for (const TensorView& part : rows_in_order({stored.data, stored.dtype, all_channels, width}))
    for (int64_t j = 0; j < part.rows; ++j)
      rows.push_back(slice_vector({part.data, part.dtype, part.rows, width}, j * width, width));
  const auto channels = static_cast<int64_t>(rows.size());
  const TensorView in_order = reader_.joined(rows);  // [channels, width]
  const TensorView turned = reader_.transposed({in_order.data, in_order.dtype, channels, width});
  if (c_.state.conv_bias)
    for (const TensorView& part : rows_in_order({bias.data, bias.dtype, all_channels, 1}))
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
  layer->log_a = state_vector(prefix + "A_log");
  layer->dt_bias = state_vector(prefix + "dt_bias");
  layer->state_norms.push_back(vector(prefix + "norm.weight", c_.state.value_dim));
}

// One matrix of gate, convolution's inputs and steps.
void Loader::load_mamba2(const std::string& prefix, LayerWeights* layer) {
  const StateConfig& s = c_.state;
  const int64_t values = s.values_size(), channels = s.conv_channels(), heads = s.num_value_heads;
  const TensorView all = reader_.tensor(prefix + "in_proj.weight", {values + channels + heads, c_.hidden_size});
  if (!reader_.status().ok()) return;
  const Range own = state_columns();
  const std::vector<TensorView> gate = {slice_rows(all, own.begin, own.count())},
                                gates = {slice_rows(all, values + channels + share_.state_values.begin,
                                                    share_.state_values.count())};
  layer->qkv = maker_.make_linear(rows_in_order(slice_rows(all, values, channels)), {}, WeightRole::kProjection);
  layer->mixed_gate = maker_.make_linear(gate, {}, WeightRole::kProjection);
  layer->state_gates = maker_.make_linear(gates, {}, WeightRole::kSmall);
  reader_.release();
  load_conv(prefix + "conv1d", layer);
  layer->log_a = state_vector(prefix + "A_log");
  layer->dt_bias = state_vector(prefix + "dt_bias");
  layer->skip = state_vector(prefix + "D");
  const TensorView norm = reader_.tensor(prefix + "norm.weight", {values});
  if (!reader_.status().ok()) return;
  const int64_t width = std::min(values / s.num_norms, own.count());
  for (int64_t first = own.begin; first < own.end; first += width)
    layer->state_norms.push_back(maker_.make_vector(slice_vector(norm, first, width)));
  reader_.release();
}

// One matrix of the gates of the convolution's input and of its output, and of the input.
void Loader::load_short_conv(const std::string& prefix, LayerWeights* layer) {
  const int64_t hidden = c_.hidden_size;
  const TensorView all = reader_.tensor(prefix + "in_proj.weight", {3 * hidden, hidden});
  if (!reader_.status().ok()) return;
  std::unique_ptr<LinearWeight>* const made[] = {&layer->conv_gate, &layer->mixed_gate, &layer->qkv};
  for (int64_t i = 0; i < 3; ++i) {
    const Range own = state_columns();
    const TensorView part = slice_rows(all, i * hidden + own.begin, own.count());
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
    layer->o = make_sum(std::move(o), state_columns());
  }
}

}  // namespace llmb
