#include "core/layer_groups.h"

#include <algorithm>
#include <map>

#include "core/types.h"

namespace llmb {

namespace {

// Layers with keys and values, by their windows and in order. A window that no sequence outgrows is none.
using Kinds = std::map<int32_t, std::vector<int32_t>>;

Kinds kinds_of(const ModelConfig& config, int32_t max_model_len) {
  Kinds kinds;
  for (int32_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (config.layer(layer).has_state) continue;  // no keys and values
    const int32_t window = config.layer(layer).window;
    kinds[window < max_model_len ? window : 0].push_back(layer);
  }
  return kinds;
}

int64_t num_groups_of(const Kinds& kinds, int64_t num_planes) {
  int64_t count = 0;
  for (const auto& [window, layers] : kinds) count += ceil_div(static_cast<int64_t>(layers.size()), num_planes);
  return count;
}

// For a sequence of the greatest length, in planes times tokens.
int64_t cost_of(const Kinds& kinds, int64_t num_planes, int32_t max_model_len) {
  int64_t cost = 0;
  for (const auto& [window, layers] : kinds)
    cost += num_planes * ceil_div(static_cast<int64_t>(layers.size()), num_planes) * (window == 0 ? max_model_len : window);
  return cost;
}

}  // namespace

LayerGroups group_layers(const ModelConfig& config, int32_t max_model_len) {
  const Kinds kinds = kinds_of(config, max_model_len);
  LayerGroups best;
  int64_t best_cost = int64_t{config.num_hidden_layers} * max_model_len;
  for (int32_t num_planes = config.num_hidden_layers; num_planes >= 1; --num_planes) {
    if (num_groups_of(kinds, num_planes) > kMaxLayerGroups) break;
    const int64_t cost = cost_of(kinds, num_planes, max_model_len);
    if (cost >= best_cost) continue;
    best_cost = cost;
    best.num_planes = num_planes;
  }
  if (best.num_planes == 0) return best;
  best.windows.clear();
  best.groups.resize(config.num_hidden_layers);
  best.planes.resize(config.num_hidden_layers);
  for (const auto& [window, layers] : kinds) {
    for (size_t i = 0; i < layers.size(); ++i) {
      const auto plane = static_cast<int32_t>(i % static_cast<size_t>(best.num_planes));
      if (plane == 0) best.windows.push_back(window);
      best.groups[layers[i]] = best.num_groups() - 1;
      best.planes[layers[i]] = plane;
    }
  }
  return best;
}

int64_t max_live_blocks(std::span<const int32_t> windows, int64_t num_blocks, int64_t num_rows, int32_t block_size) {
  int64_t count = 0;
  for (const int32_t window : windows) {
    // n positions touch ceil((n - 1) / block_size) + 1 blocks at most.
    const int64_t of_window = ceil_div(window + std::max<int64_t>(num_rows, 1) - 2, block_size) + 1;
    count += window == 0 ? num_blocks : std::min(num_blocks, of_window);
  }
  return count;
}

}  // namespace llmb
