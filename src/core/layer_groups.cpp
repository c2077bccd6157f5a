#include "core/layer_groups.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/types.h"

namespace llmb {

namespace {

// Layers of one size that share a plane.
using Plane = std::vector<int32_t>;
// The kinds of layers with keys and values of their own, by their windows and in order. A window that no sequence outgrows is
// none.
using Kinds = std::map<int32_t, std::vector<Plane>>;

// For each layer, how many of its size a plane holds.
std::vector<int32_t> layers_per_plane(const ModelConfig& config) {
  int64_t largest = 0;
  for (int32_t i = 0; i < config.num_used_layers(); ++i) largest = std::max(largest, config.kv_size_of(i));
  std::vector<int32_t> out;
  for (int32_t i = 0; i < config.num_used_layers(); ++i) {
    const int64_t size = config.kv_size_of(config.kv_layer_of(i));
    out.push_back(size > 0 ? static_cast<int32_t>(largest / size) : 1);
  }
  return out;
}

Kinds kinds_of(const ModelConfig& config, const std::vector<int32_t>& per_plane, int32_t max_model_len) {
  Kinds kinds;
  for (int32_t layer = 0; layer < config.num_used_layers(); ++layer) {
    if (!config.has_own_kv(layer)) continue;
    const int32_t window = config.layer(layer).window, count = per_plane[layer];
    std::vector<Plane>& planes = kinds[window < max_model_len ? window : 0];
    const auto open = std::find_if(planes.begin(), planes.end(), [&](const Plane& plane) {
      return per_plane[plane[0]] == count && static_cast<int32_t>(plane.size()) < count;
    });
    if (open == planes.end()) planes.push_back({layer});
    else open->push_back(layer);
  }
  return kinds;
}

int64_t num_groups_of(const Kinds& kinds, int64_t num_planes) {
  int64_t count = 0;
  for (const auto& [window, planes] : kinds) count += ceil_div(static_cast<int64_t>(planes.size()), num_planes);
  return count;
}

// For a sequence of the greatest length, in planes times tokens.
int64_t cost_of(const Kinds& kinds, int64_t num_planes, int32_t max_model_len) {
  int64_t cost = 0;
  for (const auto& [window, planes] : kinds)
    cost +=
        num_planes * ceil_div(static_cast<int64_t>(planes.size()), num_planes) * (window == 0 ? max_model_len : window);
  return cost;
}

// The number of planes with which the groups cost least; 0: one group of `num_all` planes costs no more.
int32_t cheapest_num_planes(const Kinds& kinds, int32_t num_all, int32_t max_model_len) {
  int32_t best = 0;
  int64_t best_cost = int64_t{num_all} * max_model_len;
  for (int32_t num_planes = num_all; num_planes >= 1; --num_planes) {
    if (num_groups_of(kinds, num_planes) > kMaxLayerGroups) break;
    const int64_t cost = cost_of(kinds, num_planes, max_model_len);
    if (cost >= best_cost) continue;
    best_cost = cost;
    best = num_planes;
  }
  return best;
}

}  // namespace

LayerGroups group_layers(const ModelConfig& config, int32_t max_model_len) {
  const std::vector<int32_t> per_plane = layers_per_plane(config);
  Kinds kinds = kinds_of(config, per_plane, 0);
  const auto num_all = kinds.empty() ? 0 : static_cast<int32_t>(kinds.begin()->second.size());
  LayerGroups groups;
  if (Kinds split = kinds_of(config, per_plane, max_model_len);
      (groups.num_planes = cheapest_num_planes(split, num_all, max_model_len)) > 0)
    kinds = std::move(split);
  else if (num_all == 0 || num_all == config.num_used_layers()) return {};
  else groups.num_planes = num_all;
  groups.windows.clear();
  groups.groups.resize(config.num_used_layers());
  groups.planes = groups.parts = groups.groups;
  groups.per_plane = per_plane;
  for (const auto& [window, planes] : kinds) {
    for (size_t i = 0; i < planes.size(); ++i) {
      const auto plane = static_cast<int32_t>(i % static_cast<size_t>(groups.num_planes));
      if (plane == 0) groups.windows.push_back(window);
      for (size_t part = 0; part < planes[i].size(); ++part) {
        groups.groups[planes[i][part]] = groups.num_groups() - 1;
        groups.planes[planes[i][part]] = plane;
        groups.parts[planes[i][part]] = static_cast<int32_t>(part);
      }
    }
  }
  for (int32_t i = 0; i < config.num_used_layers(); ++i) {
    const int32_t source = config.kv_layer_of(i);
    groups.groups[i] = groups.groups[source];
    groups.planes[i] = groups.planes[source];
    groups.parts[i] = groups.parts[source];
  }
  return groups;
}

LayerGroups groups_of_layers(const LayerGroups& groups, int64_t begin, int64_t end) {
  if (groups.groups.empty()) return groups;
  LayerGroups out;
  out.windows = groups.windows;
  const auto part_of = [&](const std::vector<int32_t>& all) {
    return std::vector<int32_t>(all.begin() + begin, all.begin() + end);
  };
  out.groups = part_of(groups.groups), out.planes = part_of(groups.planes);
  out.parts = part_of(groups.parts), out.per_plane = part_of(groups.per_plane);
  // A group's planes that are left, one behind the other.
  std::map<std::pair<int32_t, int32_t>, int32_t> place;
  std::vector<int32_t> counts(groups.windows.size());
  for (size_t i = 0; i < out.groups.size(); ++i) {
    const auto [at, is_new] = place.try_emplace({out.groups[i], out.planes[i]}, counts[out.groups[i]]);
    counts[out.groups[i]] += is_new;
    out.planes[i] = at->second;
  }
  out.num_planes = *std::max_element(counts.begin(), counts.end());
  return out;
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
