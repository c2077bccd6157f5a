// block_copy: KV blocks of all layers from one pool to another or within one: copy-on-write, and swapping to pinned
// host memory and back.
//
// 1. Pairs are copied in no order: no block is written twice, and none is both read and written.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/types.h"

namespace llmb::cuda {

// Where block b of plane p begins: data + p * plane_stride + b * block_stride. A layer has two planes, keys and values.
struct BlockPool {
  void* data = nullptr;                        // in pinned host memory: as the host sees it
  int64_t plane_stride = 0, block_stride = 0;  // bytes
  bool on_host = false;
};

struct BlockPair {
  BlockId from, to;
};

// Throws CudaError.
void block_copy(const BlockPool& from, const BlockPool& to, int32_t num_planes, int64_t block_bytes,
                const BlockPair* pairs,  // [num_pairs]  on the device
                int32_t num_pairs, cudaStream_t stream);

}  // namespace llmb::cuda
