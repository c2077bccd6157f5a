// MLPs: dense ones, experts to choose from, and those that all tokens go through.
#include <cmath>
#include <string>
#include <utility>

#include "model/weight_loader.h"

namespace llmb {

void Loader::load_mlp(const MlpNames& names, int64_t intermediate, const Range& columns, LayerWeights* layer) {
  const int64_t hidden = c_.hidden_size;
  Parts gate_up, down;
  const auto add = [&](const char* name, int64_t rows, int64_t cols, Parts* to) {
    add_projection(names.prefix, name, rows, cols, c_.mlp_bias, to);
  };
  // GGUF has two matrices where some checkpoints have one.
  const bool is_one = names.gate_up != nullptr && (reader_.has(names.prefix + names.gate_up + ".weight") ||
                                                   !reader_.has(names.prefix + names.gate + ".weight"));
  if (c_.activation.gated && is_one) {
    add(names.gate_up, 2 * intermediate, hidden, &gate_up);
  } else {
    if (c_.activation.gated) add(names.gate, intermediate, hidden, &gate_up);
    add(names.up, intermediate, hidden, &gate_up);
  }
  layer->gate_up = make(mlp_rows(gate_up, intermediate, columns));
  add(names.down, hidden, intermediate, &down);
  layer->down = make_sum(std::move(down), columns);
}

void Loader::load_shared_expert(const std::string& prefix, LayerWeights* layer) {
  load_mlp({prefix + names_.shared_expert + ".", names_.shared_gate_proj, names_.shared_up, names_.shared_gate_up,
            names_.shared_down},
           c_.experts.shared_intermediate_size, share_.shared_mlp, layer);
  if (!c_.experts.shared_gate) return;
  Parts gate;
  add_projection(prefix, names_.shared_gate, 1, c_.hidden_size, false, &gate);
  layer->shared_gate = make(gate, WeightRole::kSmall);
}

// The experts' folder: where either form of them is.
std::string Loader::find_experts(const std::string& prefix) const {
  const std::string one_by_one = std::string(".0.") + names_.expert_gate + ".weight";
  const std::string name = reader_.find(prefix, names_.experts, one_by_one.c_str());
  return reader_.has(name + one_by_one) ? name : reader_.find(prefix, names_.experts, names_.stacked_gate_up);
}

StackedExperts Loader::read_stacked(const std::string& name) {
  StackedExperts s;
  const int64_t count = c_.experts.num_experts, hidden = c_.hidden_size, deep = c_.experts.intermediate_size;
  const int64_t wide = (c_.activation.gated ? 2 : 1) * deep;
  if (names_.experts_layout == ExpertsLayout::kInterleaved) {
    s.gate_up_bias = reader_.tensor(name + ".gate_up_proj_bias", {count, wide});
    s.down_bias = reader_.tensor(name + ".down_proj_bias", {count, hidden});
    if (reader_.has(name + ".gate_up_proj_blocks")) return s;
    s.gate_up = reader_.tensor(name + ".gate_up_proj", {count, hidden, wide});
    s.down = reader_.tensor(name + ".down_proj", {count, deep, hidden});
  } else if (names_.experts_layout == ExpertsLayout::kTransposed) {
    s.gate_up = reader_.tensor(name + ".gate_up_proj", {count, hidden, wide});
    s.down = reader_.tensor(name + ".down_proj", {count, deep, hidden});
  } else if (!reader_.has(name + ".0." + names_.expert_gate + ".weight") && reader_.has(name + names_.stacked_gate_up)) {
    s.gate_up = reader_.tensor(name + names_.stacked_gate_up, {count, wide, hidden});
    s.down = reader_.tensor(name + names_.stacked_down, {count, hidden, deep});
  }
  return s;
}

void Loader::add_expert(const std::string& name, const StackedExperts& stacked, int32_t index, Parts* gate_up,
                        Parts* down) {
  const int64_t hidden = c_.hidden_size, intermediate = c_.experts.intermediate_size;
  const int64_t wide = (c_.activation.gated ? 2 : 1) * intermediate;
  if (names_.experts_layout == ExpertsLayout::kInterleaved)
    return add_interleaved_expert(name, stacked, index, gate_up, down);
  if (names_.experts_layout == ExpertsLayout::kTransposed) {
    gate_up->add(reader_.transposed(slice_rows(stacked.gate_up, index * hidden, hidden)), {}, false);
    down->add(reader_.transposed(slice_rows(stacked.down, index * intermediate, intermediate)), {}, false);
    return;
  }
  if (stacked.gate_up.rows > 0) {
    gate_up->add(slice_rows(stacked.gate_up, index * wide, wide), {}, false);
    down->add(slice_rows(stacked.down, index * hidden, hidden), {}, false);
    return;
  }
  const std::string one = name + "." + std::to_string(index) + ".";
  if (c_.activation.gated) add_projection(one, names_.expert_gate, intermediate, hidden, c_.experts.bias, gate_up);
  add_projection(one, names_.expert_up, intermediate, hidden, c_.experts.bias, gate_up);
  add_projection(one, names_.expert_down, hidden, intermediate, c_.experts.bias, down);
}

// Gate and up in turn: gate is every other row from 0 on, up from 1 on.
void Loader::add_interleaved_expert(const std::string& name, const StackedExperts& stacked, int32_t index,
                                    Parts* gate_up, Parts* down) {
  const int64_t count = c_.experts.num_experts, hidden = c_.hidden_size, wide = 2 * c_.experts.intermediate_size;
  const auto matrix = [&](const char* part, const TensorView& all, int64_t rows, int64_t cols) {
    if (all.rows == 0) return reader_.mxfp4(name + part, index, count, rows, cols);
    return reader_.transposed(slice_rows(all, index * cols, cols));
  };
  const TensorView both = matrix(".gate_up_proj", stacked.gate_up, wide, hidden);
  const TensorView biases = slice_vector(stacked.gate_up_bias, index * wide, wide);
  for (const int64_t begin : {0, 1}) gate_up->add(reader_.every(both, begin, 2), reader_.every(biases, begin, 2), true);
  down->add(matrix(".down_proj", stacked.down, hidden, wide / 2),
            slice_vector(stacked.down_bias, index * hidden, hidden), true);
}

void Loader::load_router(const std::string& prefix, LayerWeights* layer) {
  Parts router;
  const std::string router_name = reader_.find(prefix, names_.router, ".weight");
  router.add(reader_.tensor(router_name + ".weight", {c_.experts.num_experts, c_.hidden_size}),
             c_.experts.bias ? reader_.tensor(router_name + ".bias", {c_.experts.num_experts}) : TensorView(),
             c_.experts.bias);
  if (c_.experts.beside_dense)
    router.weights[0] = reader_.times_columns(router.weights[0],
                                              reader_.tensor(prefix + names_.router_scale, {c_.hidden_size}),
                                              1 / std::sqrt(static_cast<double>(c_.hidden_size)));
  layer->router = make(router, WeightRole::kSmall);
  if (!c_.experts.choice_bias) return;
  const std::string name = reader_.find(prefix, names_.choice_bias, "");
  const int64_t count = c_.experts.num_experts;
  const TensorView bias =
      names_.choice_bias_is_matrix ? reader_.tensor(name, {1, count}) : reader_.tensor(name, {count});
  layer->choice_bias = make_vector({bias.data, bias.dtype, 1, count});
}

void Loader::load_norms_beside_dense(const std::string& prefix, LayerWeights* layer) {
  layer->expert_scales = vector(prefix + names_.expert_scales, c_.experts.num_experts);
  layer->router_norm.weight = ones(c_.hidden_size);
  norm(prefix, names_.experts_norm, &layer->experts_norm);
  norm(prefix, names_.experts_post_norm, &layer->experts_post_norm);
  norm(prefix, names_.dense_post_norm, &layer->dense_post_norm);
}

void Loader::load_experts(const std::string& prefix, LayerWeights* layer) {
  load_router(prefix, layer);
  const std::string name = find_experts(prefix);
  const StackedExperts stacked = read_stacked(name);
  std::vector<std::unique_ptr<LinearWeight>> gate_up, down;
  for (int32_t i = 0; i < c_.experts.num_experts && reader_.status().ok(); ++i) {
    if (!share_.experts.holds(i)) {  // another rank's
      gate_up.emplace_back();
      down.emplace_back();
      continue;
    }
    Parts first, second;
    add_expert(name, stacked, i, &first, &second);
    if (!reader_.status().ok()) return;
    gate_up.push_back(maker_.make_linear(first.weights, first.biases, WeightRole::kProjection));
    down.push_back(maker_.make_linear(second.weights, second.biases, WeightRole::kProjection));
    if (stacked.is_used()) reader_.release_copies();
    else reader_.release();
  }
  reader_.release();
  if (reader_.status().ok()) layer->experts = maker_.make_experts(std::move(gate_up), std::move(down));
}

}  // namespace llmb
