// join_pieces, merge_states: attention over positions that ranks divide (backend/cuda/slice_states.h). Of part of a row's
// positions attention finds values = sum of 2^(score - max) v and sum = sum of 2^(score - max), scores in units of log2;
// states of several parts make that of all (online softmax). A row's state is [value_dim] values, max and sum, in fp32;
// where nothing was seen sum is 0. States are added in the order of parts.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace llmb::cuda {

// Partial results of a row and head (AttentionItem): those of piece p are at first + p * stride.
struct RowPieces {
  int32_t first = 0, num_pieces = 0, stride = 0;
};

// Throws CudaError.
void join_pieces(const RowPieces* rows,        // [num_rows]
                 const float* partials,        // [., value_dim]
                 const float* partial_stats,   // [., 2]  max, sum
                 int64_t num_rows, int32_t value_dim,
                 float* states,  // [num_rows, value_dim + 2]
                 cudaStream_t stream);

// out[i] = the result of all parts of row i, a token's head i % num_heads. T: float, __nv_bfloat16 or __half. Throws
// CudaError.
template <class T>
void merge_states(const float* states,  // [num_parts, num_rows, value_dim + 2]
                  int32_t num_parts, int64_t num_rows, int32_t num_heads, int32_t value_dim,
                  const float* sinks,  // [num_heads]  a further score whose value is 0; null: none
                  T* out,              // [num_rows, value_dim]
                  cudaStream_t stream);

}  // namespace llmb::cuda
