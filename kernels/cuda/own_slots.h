// own_slots: where a rank keeps the keys and values of a step's rows, of which it has those of its slices of blocks alone
// (backend/cuda/gathered_slices.h). In a layer group with `count` blocks, slices of all ranks are numbered
// rank * count + i, where block i is one of the pool's; a row's slot is one of these. Such a slot becomes the pool's.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/block_copy.h"

namespace llmb::cuda {

// The blocks of a layer group.
struct SliceGroup {
  int32_t first = 0, count = 0;  // in `blocks`
};

// Slots of no row, and those of other ranks, become -1. Throws CudaError.
void own_slots(const int32_t* slots,  // [num_groups, num_tokens]  negative: of no row
               int32_t num_tokens,
               const SliceGroup* groups,  // [num_groups]
               int32_t num_groups,
               const BlockPair* blocks,  // block i of a group is the pool's block blocks[first + i].from
               int32_t rank, int32_t slice_tokens,
               int32_t* own,  // [num_groups, num_tokens]
               cudaStream_t stream);

}  // namespace llmb::cuda
