// A product of matrix tiles, one thread an output: the main loop of linear_mma and linear_grouped for fp32, and for
// sizes that tensor cores cannot load. Device code only.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.h"

namespace llmb::cuda::scalar_tiles {

// A block of kCols x kRows threads computes kRows x kCols outputs.
constexpr int kRows = 4, kCols = 32;

// This thread's output: one chain of sums over k, of row x_row of x (negative: none, the sum is 0) and the weight's row
// first_feature + threadIdx.x. REQUIRES: all threads of the block call it; those with one threadIdx.y have one x_row
template <class T>
__device__ __forceinline__ float multiply(const T* x,             // [any, in_features]
                                          int64_t x_row,
                                          const T* weight,        // [out_features, in_features]
                                          int64_t first_feature,  // of the block
                                          int64_t out_features, int64_t in_features,
                                          int64_t x_stride) {     // from one row of x to the next
  __shared__ float x_tile[kRows][kCols];
  __shared__ float w_tile[kCols][kCols + 1];
  float sum = 0;
  for (int64_t k = 0; k < in_features; k += kCols) {
    const int64_t own_k = k + threadIdx.x;
    x_tile[threadIdx.y][threadIdx.x] =
        x_row >= 0 && own_k < in_features ? to_float(x[x_row * x_stride + own_k]) : 0.0f;
    for (int i = threadIdx.y; i < kCols; i += kRows) {
      const int64_t w_row = first_feature + i;
      w_tile[i][threadIdx.x] =
          w_row < out_features && own_k < in_features ? to_float(weight[w_row * in_features + own_k]) : 0.0f;
    }
    __syncthreads();
    for (int i = 0; i < kCols; ++i) sum = fmaf(x_tile[threadIdx.y][i], w_tile[threadIdx.x][i], sum);
    __syncthreads();
  }
  return sum;
}

}  // namespace llmb::cuda::scalar_tiles
