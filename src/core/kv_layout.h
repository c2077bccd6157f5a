// The shape of the paged KV pool. Ids and sizes only; memory belongs to a backend.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/layer_groups.h"
#include "core/model_config.h"
#include "core/types.h"

namespace llmb {

// Positions of a group of an int4 cache: those between two multiples of it. Results depend on it.
inline constexpr int32_t kKvGroup = 32;

// The keys of a token in a layer; as many values, but with KvLayout::latent_dim.
struct KvHeads {
  int32_t num_heads = 0;  // 0: the layer has none of its own
  int32_t head_dim = 0;
  bool operator==(const KvHeads&) const = default;
};

// slot = block * block_size + offset. How a backend lays out a block inside is its own affair.
struct KvLayout {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_size = 16;     // tokens per block
  int32_t num_blocks = 0;      // of all groups together
  // kI8, kF8: each key and each value of a head has an fp32 scale beside it. kI4: in groups of kKvGroup positions, with
  // two bf16 numbers for each channel of a group's keys, and for each 32 channels of a value.
  DType dtype = DType::kF32;
  LayerGroups groups;          // whose tables name the blocks
  std::vector<KvHeads> heads;  // [num_layers], or empty: num_kv_heads of head_dim in all layers
  int32_t latent_dim = 0;      // > 0: no values are stored: they are the last so many channels of the keys

  // > 0: a block also has so many numbers of each token, the hidden state that a layer behind the last one takes.
  int32_t hidden_size = 0;

  KvHeads heads_of(int32_t layer) const { return heads.empty() ? KvHeads{num_kv_heads, head_dim} : heads[layer]; }
  int32_t num_planes() const { return groups.groups.empty() ? num_layers : groups.num_planes; }
  int64_t bytes_per_token() const {  // in all layers
    int64_t bytes = hidden_bytes();
    for (int32_t i = 0; i < num_layers; ++i) bytes += layer_bytes(i);
    return bytes;
  }
  int64_t bytes_per_block() const { return (num_planes() * plane_bytes() + hidden_bytes()) * block_size; }
  DType hidden_dtype() const { return dtype == DType::kF32 ? DType::kF32 : DType::kBF16; }
  int64_t hidden_bytes() const { return hidden_size * dtype_bytes(hidden_dtype()); }  // of a token

 private:
  int64_t layer_bytes(int32_t layer) const {  // of a token
    const KvHeads of = heads_of(layer);
    if (dtype == DType::kI4)
      return of.num_heads * (ceil_div(5 * of.head_dim, 8) + of.head_dim / 2 + 4 * ceil_div(of.head_dim, 32));
    const int64_t scale_bytes = dtype == DType::kI8 || dtype == DType::kF8 ? 4 : 0;
    return int64_t{latent_dim > 0 ? 1 : 2} * of.num_heads * (of.head_dim * dtype_bytes(dtype) + scale_bytes);
  }
  int64_t plane_bytes() const {  // of a token
    int64_t bytes = 0;
    for (int32_t i = 0; i < num_layers; ++i) bytes = std::max(bytes, groups.layers_of_plane(i) * layer_bytes(i));
    return bytes;
  }
};

// Without blocks yet.
inline KvLayout make_kv_layout(const ModelConfig& config, int32_t block_size, DType dtype, LayerGroups groups) {
  KvLayout kv{config.num_used_layers(),
              config.num_key_value_heads,
              config.head_dim,
              block_size,
              0,
              dtype,
              std::move(groups),
              {},
              config.latent.rank,
              config.mtp.is_used ? config.hidden_size : 0};
  const bool differ = config.heads_differ() || config.has_states() || config.has_halves();
  for (int32_t i = 0; differ && i < config.num_used_layers(); ++i)
    kv.heads.push_back({config.has_own_kv(i) ? config.num_kv_heads_of(i) : 0, config.head_dim_of(i)});
  return kv;
}

}  // namespace llmb
