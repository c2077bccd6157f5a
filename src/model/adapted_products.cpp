#include "model/adapted_products.h"

#include <numeric>

namespace llmb {

int64_t mlp_size(const ModelConfig& config, int32_t layer) {
  return config.layer(layer).has_experts && !config.experts.beside_dense ? config.experts.shared_intermediate_size
                                                                         : config.intermediate_size_of(layer);
}

std::vector<int64_t> product_parts(const ModelConfig& config, int32_t layer, Projection projection) {
  const StateConfig& state = config.state;
  const bool has_state = config.layer(layer).has_state;
  switch (projection) {
    case Projection::kQkv: {
      if (has_state) return {state.keys_size(), state.keys_size(), state.values_size()};
      const int64_t q = config.q_size_of(layer), kv = config.kv_size_of(layer);
      if (kv == 0) return {q};
      return {q, kv, kv};
    }
    case Projection::kGateUp: {
      const int64_t wide = mlp_size(config, layer);
      if (!config.activation.gated) return {wide};
      return {wide, wide};
    }
    case Projection::kMixedGate:
      return {has_state ? state.values_size() : config.q_size_of(layer)};
    case Projection::kStateGates:
      if (state.kind == StateKind::kGatedDelta) return {state.num_value_heads, state.num_value_heads};
      return {state.kind == StateKind::kShortConv ? state.values_size() : state.gates_size()};
    case Projection::kRouter:
      return {config.experts.num_experts};
    case Projection::kSharedGate:
      return {1};
    case Projection::kLmHead:
      return {config.vocab_size};
    case Projection::kO:
    case Projection::kDown:
      break;
  }
  return {config.hidden_size};
}

int64_t product_columns(const ModelConfig& config, int32_t layer, Projection projection) {
  const std::vector<int64_t> parts = product_parts(config, layer, projection);
  return std::accumulate(parts.begin(), parts.end(), int64_t{0});
}

int64_t product_inputs(const ModelConfig& config, int32_t layer, Projection projection) {
  if (projection == Projection::kDown) return mlp_size(config, layer);
  if (projection != Projection::kO) return config.hidden_size;
  return config.layer(layer).has_state ? config.state.values_size() : config.q_size_of(layer);
}

}  // namespace llmb
