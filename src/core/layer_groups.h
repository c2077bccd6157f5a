// Layers that share block tables. A layer that looks back only over a window does not need the blocks before it, so
// layers with one size of window form groups, and a sequence has a block table in each group.
//
// All groups take blocks from one pool. A block has num_planes planes, each with the keys and values of block_size
// tokens in one layer: of group g's layers in a block of a table of g. So a block's id says nothing about its group.
// A plane is as large as the largest layer's keys and values, and holds those of as many smaller layers as fit it.
// Layers that attend to an earlier layer's keys and values have that layer's place.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/model_config.h"

namespace llmb {

struct LayerGroups {
  std::vector<int32_t> windows = {0};  // [num_groups]  positions that a token sees, its own the last; 0: all up to its own
  std::vector<int32_t> groups;         // [num_layers], or empty: one group of all
  std::vector<int32_t> planes;         // the same: place among the group's layers
  std::vector<int32_t> parts;          // the same: place in the plane, among layers of its size
  std::vector<int32_t> per_plane;      // the same: how many layers of its size a plane holds
  int32_t num_planes = 0;              // where these are not empty: most planes that a group's layers need

  int32_t num_groups() const { return static_cast<int32_t>(windows.size()); }
  int32_t group(int32_t layer) const { return groups.empty() ? 0 : groups[layer]; }
  int32_t plane(int32_t layer) const { return planes.empty() ? layer : planes[layer]; }
  int32_t part(int32_t layer) const { return parts.empty() ? 0 : parts[layer]; }
  int32_t layers_of_plane(int32_t layer) const { return per_plane.empty() ? 1 : per_plane[layer]; }
};

inline constexpr int32_t kMaxLayerGroups = 8;

// Groups of layers with one window each. Layers of one kind may form several groups, so that groups have about as many
// layers and no plane lies idle. The groups are those in which a sequence of max_model_len tokens takes the least
// memory; one group where several do not save any, or with a max_model_len of 0.
LayerGroups group_layers(const ModelConfig& config, int32_t max_model_len);

// The groups of all layers, for those in [begin, end) alone, which may be of some groups only.
LayerGroups groups_of_layers(const LayerGroups& groups, int64_t begin, int64_t end);

// The first position that a row at `position` sees.
constexpr int32_t first_seen(int32_t window, int32_t position) {
  return window == 0 || position < window ? 0 : position - window + 1;
}

// Blocks of all groups that a sequence holds at most, where its table has `num_blocks` blocks and a step computes up to
// `num_rows` rows of it: of a group with a window those of the rows and of the window before them.
int64_t max_live_blocks(std::span<const int32_t> windows, int64_t num_blocks, int64_t num_rows, int32_t block_size);

}  // namespace llmb
