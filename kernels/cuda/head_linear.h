// head_linear: a product for each head: of every row, columns of head h = other columns of head h · weight[h]ᵀ.
// join_latents: makes room for it: each head's rotated channels go in front of its longer query, the latent key behind
// all of them. For latent attention (LatentConfig in core/model_config.h).
//
// Each output element is one chain of sums over its own row of x: bits do not depend on the number of rows.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>

namespace llmb::cuda {

// Where a head's columns are in a row: head h's first is column first + h * head_stride.
struct HeadColumns {
  int64_t row_stride = 0;
  int64_t first = 0;
  int64_t head_stride = 0;
};

// A matrix for each head.
struct HeadMatrices {
  std::span<const void* const> weights;  // [num_heads] addresses on the device of T [out_features, in_features]
  int64_t out_features = 0, in_features = 0;
};

// T, everywhere: float, __nv_bfloat16 or __half. REQUIRES: x and out do not overlap. Throws CudaError.
template <class T>
void head_linear(const HeadMatrices& heads,
                 const T* x, const HeadColumns& x_columns,  // [rows, x_columns.row_stride]
                 int64_t rows,
                 T* out, const HeadColumns& out_columns,  // [rows, out_columns.row_stride]
                 cudaStream_t stream);

struct LatentRows {
  int32_t num_heads = 0;
  int32_t head_dim = 0;   // of a latent key: rope_dim, then the latent
  int32_t rope_dim = 0;
  int32_t query_dim = 0;  // of a head's query: others first, then rope_dim
};

template <class T>
void join_latents(const LatentRows& shape,
                  const T* queries,  // [rows, num_heads * query_dim]
                  const T* latents,  // [rows, head_dim]
                  int64_t rows,
                  T* qkv,  // [rows, (num_heads + 1) * head_dim]  the heads' last head_dim - rope_dim are left alone
                  cudaStream_t stream);

}  // namespace llmb::cuda
