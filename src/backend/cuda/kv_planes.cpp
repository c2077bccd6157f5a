#include "backend/cuda/kv_planes.h"

#include <algorithm>

namespace llmb {

KvPlanes::KvPlanes(const KvLayout& layout) : layout_(layout) {
  KvHeads first;
  for (int32_t i = 0; i < layout.num_layers; ++i) {
    const KvHeads heads = layout.heads_of(i);
    if (heads.num_heads == 0) continue;
    if (first.num_heads == 0) first = heads;
    has_parts_ |= heads != first || layout.groups.part(i) > 0;
  }
  const bool has_values = layout.latent_dim == 0;
  num_arrays_ = int64_t{layout.num_planes()} * (has_values && !has_parts_ ? 2 : 1);
  for (int32_t i = 0; i < layout.num_layers; ++i)
    block_bytes_ = std::max(block_bytes_, half_bytes(i) * (has_parts_ ? 2 * layout.groups.layers_of_plane(i) : 1));
}

int64_t KvPlanes::half_bytes(int32_t layer) const {
  const KvHeads heads = layout_.heads_of(layer);
  return int64_t{layout_.block_size} * heads.num_heads * heads.head_dim * dtype_bytes(layout_.dtype);
}

KvPlanes::Place KvPlanes::place(int32_t layer, int64_t num_blocks) const {
  const int64_t array_bytes = num_blocks * block_bytes_, plane = layout_.groups.plane(layer);
  if (has_parts_) {
    const int64_t keys = plane * array_bytes + layout_.groups.part(layer) * 2 * half_bytes(layer);
    return {keys, keys + half_bytes(layer)};
  }
  if (layout_.latent_dim > 0) return {plane * array_bytes, plane * array_bytes};
  return {2 * plane * array_bytes, (2 * plane + 1) * array_bytes};
}

}  // namespace llmb
