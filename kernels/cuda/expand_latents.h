// expand_latents: keys and values of every head from a cache of latents, for attention of prompts (LatentConfig in
// core/model_config.h): key = latent · key_head, then the rotated channels that all heads share; value = latent ·
// value_headᵀ. take_rotated: the queries that go with such keys.
//
// Positions come in blocks of kExpandedBlock, of one sequence each.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "core/types.h"

namespace llmb::cuda {

inline constexpr int32_t kExpandedBlock = 128;

struct ExpandedBlock {
  int32_t table_start = 0;  // of the sequence's block table
  int32_t first_position = 0;
  int32_t num_positions = 0;  // > 0; what lies behind them in the block is not written
};

struct ExpandedShape {
  int32_t rank = 0, rope_dim = 0, key_dim = 0, value_dim = 0;  // LatentConfig's
  int32_t block_size = 16;                                     // of the cache
  int64_t block_stride = 0;                                    // of the cache, in elements
  int32_t table_stride = 1;                                    // from a block's id to the next one's in block_ids

  constexpr int32_t row_dim() const { return key_dim + rope_dim + value_dim; }
};

// Elements of the memory that expand_latents() works in.
inline int64_t expansion_workspace(const ExpandedShape& s, int64_t num_heads) { return num_heads * s.key_dim * s.rank; }

// T: float, __nv_bfloat16 or __half. Throws CudaError.
template <class T>
void expand_latents(const ExpandedShape& shape,
                    std::span<const void* const> key_heads,    // [num_heads] of T [rank, key_dim]
                    std::span<const void* const> value_heads,  // [num_heads] of T [value_dim, rank]
                    const T* latents,                          // the cache: rows of rope_dim + rank
                    const BlockId* block_ids, const ExpandedBlock* blocks, int64_t num_blocks,
                    T* workspace,
                    T* out,  // [num_blocks, num_heads, kExpandedBlock, row_dim]
                    cudaStream_t stream);

// The rotated channels of each head's longer query go behind its other ones.
template <class T>
void take_rotated(const ExpandedShape& shape, int64_t num_heads,
                  const T* qkv, int64_t qkv_stride,  // [rows, qkv_stride]  rope_dim + rank of each head, rotated ones first
                  int64_t rows,
                  T* queries,  // [rows, num_heads * (key_dim + rope_dim)]
                  cudaStream_t stream);

}  // namespace llmb::cuda
