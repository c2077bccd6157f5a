// The shape of the paged KV pool. Ids and sizes only; memory belongs to a backend.
#pragma once

#include <cstdint>

#include "core/layer_groups.h"
#include "core/types.h"

namespace llmb {

// slot = block * block_size + offset. How a backend lays out a block inside is its own affair.
struct KvLayout {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_size = 16;  // tokens per block
  int32_t num_blocks = 0;   // of all groups together
  DType dtype = DType::kF32;  // kI8: each key and each value of a head has an fp32 scale beside it
  LayerGroups groups;         // whose tables name the blocks

  int32_t num_planes() const { return groups.groups.empty() ? num_layers : groups.num_planes; }
  int64_t bytes_per_token() const { return num_layers * layer_bytes(); }  // in all layers
  int64_t bytes_per_block() const { return num_planes() * layer_bytes() * block_size; }

 private:
  int64_t layer_bytes() const {  // of a token
    const int64_t scale_bytes = dtype == DType::kI8 ? 4 : 0;
    return int64_t{2} * num_kv_heads * (head_dim * dtype_bytes(dtype) + scale_bytes);
  }
};

}  // namespace llmb
