// A product of matrix tiles on tensor cores: the main loop of linear_mma, linear_int8 and linear_grouped. Device code
// only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device.h"
#include "kernels/cuda/ptx.h"

namespace llmb::cuda::mma_tiles {

constexpr int kTileK = 64;                 // elements: rows of 128 bytes in shared memory
constexpr int kChunksPerRow = kTileK / 8;  // of 16 bytes

// A block computes kTileM x kTileN outputs; its kWarpsM x kWarpsN warps share them out, each by fragments of 16 rows
// and 8 columns. kStages tiles of x and of the weight are in shared memory or on their way.
template <int kM, int kN, int kWarpsAlongM, int kWarpsAlongN, int kNumStages>
struct Tiling {
  static constexpr int kTileM = kM, kTileN = kN, kWarpsM = kWarpsAlongM, kWarpsN = kWarpsAlongN, kStages = kNumStages;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kWarpRows = kM / kWarpsM, kWarpCols = kN / kWarpsN;
  static constexpr int kRowTiles = kWarpRows / 16, kColTiles = kWarpCols / 8;
  static constexpr int kStageElements = (kM + kN) * kTileK;
  static constexpr size_t kSharedBytes = size_t{2} * kStages * kStageElements;

  // The place of this thread's warp in the block's outputs.
  static __device__ int warp_row() { return static_cast<int>(threadIdx.x) / 32 / kWarpsN * kWarpRows; }
  static __device__ int warp_col() { return static_cast<int>(threadIdx.x) / 32 % kWarpsN * kWarpCols; }
};

// Two int8 numbers, neighbours along k, in the place of one element of 16 bits: fragments have the same bytes, and a
// product of them takes twice as many k. Their sums are exact.
struct alignas(2) Int8Pair {
  int8_t k[2];
};

template <class T>
using SumOf = std::conditional_t<std::is_same_v<T, Int8Pair>, int32_t, float>;

// d [16,8] += a * b, of 16 elements of k.
template <class T>
__device__ __forceinline__ void multiply_fragments(SumOf<T> (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<T, Int8Pair>) ptx::mma_m16n8k32_int8(d, a, b);
  else ptx::mma_m16n8k16<T>(d, a, b);
}

// This thread's part of a block's outputs.
template <class Tile, class Sum>
struct Sums {
  Sum value[Tile::kRowTiles][Tile::kColTiles][4] = {};

  // Calls write(row, column, sum) for each, counted from the block's first.
  template <class Write>
  __device__ __forceinline__ void for_each(const Write& write) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < Tile::kRowTiles; ++i)
#pragma unroll
      for (int j = 0; j < Tile::kColTiles; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          write(Tile::warp_row() + i * 16 + e / 2 * 8 + lane / 4, Tile::warp_col() + j * 8 + lane % 4 * 2 + e % 2,
                value[i][j][e]);
  }
};

// 16-byte chunks of a tile row change places by the row, so that the eight rows of an 8x8 matrix lie in different
// banks.
__device__ __forceinline__ int element_of(int row, int chunk) {
  return row * kTileK + ((chunk ^ (row & (kChunksPerRow - 1))) * 8);
}

// Columns [k, k + kTileK) of kRows rows of a matrix whose rows begin row_stride apart, the i-th of them at row_of(i),
// negative where there is none; what lies outside is zero.
template <class T, int kRows, int kThreads, class RowOf>
__device__ __forceinline__ void load_tile(T* tile, const T* matrix, const RowOf& row_of, int64_t k, int64_t num_cols,
                                          int64_t row_stride) {
  static_assert(kRows * kChunksPerRow % kThreads == 0 && kThreads % kChunksPerRow == 0);
  const int first_row = threadIdx.x / kChunksPerRow, chunk = threadIdx.x % kChunksPerRow;
#pragma unroll
  for (int i = 0; i < kRows * kChunksPerRow / kThreads;
       ++i) {  // so often for every thread: one address serves the loop
    const int row = first_row + i * (kThreads / kChunksPerRow);
    const int64_t from_row = row_of(row), column = k + chunk * 8;
    const bool is_inside = from_row >= 0 && column < num_cols;
    ptx::cp_async16(tile + element_of(row, chunk), is_inside ? matrix + from_row * row_stride + column : matrix,
                    is_inside);
  }
}

// Adds the product of a tile of x and one of the weight.
template <class T, class Tile>
__device__ __forceinline__ void add_tiles(const T* x_tile, const T* w_tile, Sums<Tile, SumOf<T>>* sums) {
  constexpr int kRowTiles = Tile::kRowTiles, kColTiles = Tile::kColTiles;
  const int lane = threadIdx.x % 32, warp_row = Tile::warp_row(), warp_col = Tile::warp_col();
#pragma unroll
  for (int k = 0; k < kTileK / 16; ++k) {
    uint32_t a[kRowTiles][4], b[kColTiles][2];
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
      ptx::ldmatrix_x4(a[i], x_tile + element_of(warp_row + i * 16 + lane % 16, 2 * k + lane / 16));
    if constexpr (kColTiles % 2 == 0) {
#pragma unroll
      for (int j = 0; j < kColTiles; j += 2) {
        uint32_t pair[4];
        ptx::ldmatrix_x4(pair, w_tile + element_of(warp_col + j * 8 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
        b[j][0] = pair[0], b[j][1] = pair[1];
        b[j + 1][0] = pair[2], b[j + 1][1] = pair[3];
      }
    } else {
#pragma unroll
      for (int j = 0; j < kColTiles; ++j)
        ptx::ldmatrix_x2(b[j], w_tile + element_of(warp_col + j * 8 + lane % 8, 2 * k + lane / 8 % 2));
    }
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int j = 0; j < kColTiles; ++j) multiply_fragments<T>(sums->value[i][j], a[i], b[j]);
  }
}

// The block's outputs: one chain of sums over k for each. x_row_of and feature_of name the matrix rows of the block's
// rows and columns, as in load_tile; x's rows begin x_stride apart, the weight's in_features.
template <class T, class Tile, class RowOf, class FeatureOf>
__device__ __forceinline__ Sums<Tile, SumOf<T>> multiply(const T* x, const RowOf& x_row_of, const T* weight,
                                                         const FeatureOf& feature_of, int64_t in_features,
                                                         int64_t x_stride) {
  T* const shared = dynamic_shared<T>();
  const int num_steps = static_cast<int>((in_features + kTileK - 1) / kTileK);
  const auto load_stage = [&](int step) {
    if (step < num_steps) {
      T* const x_tile = shared + step % Tile::kStages * Tile::kStageElements;
      const int64_t k = int64_t{step} * kTileK;
      load_tile<T, Tile::kTileN, Tile::kThreads>(x_tile + Tile::kTileM * kTileK, weight, feature_of, k, in_features,
                                                 in_features);
      load_tile<T, Tile::kTileM, Tile::kThreads>(x_tile, x, x_row_of, k, in_features, x_stride);
    }
    ptx::cp_async_commit();  // an empty group keeps the count
  };
  Sums<Tile, SumOf<T>> sums;
#pragma unroll
  for (int step = 0; step < Tile::kStages - 1; ++step) load_stage(step);
  for (int step = 0; step < num_steps; ++step) {
    ptx::cp_async_wait<Tile::kStages - 2>();
    __syncthreads();  // every thread's copies have landed, and nobody reads the stage that is filled next
    load_stage(step + Tile::kStages - 1);
    const T* const x_tile = shared + step % Tile::kStages * Tile::kStageElements;
    add_tiles<T, Tile>(x_tile, x_tile + Tile::kTileM * kTileK, &sums);
  }
  return sums;
}

template <class T, class Tile, class RowOf, class FeatureOf>
__device__ __forceinline__ Sums<Tile, SumOf<T>> multiply(const T* x, const RowOf& x_row_of, const T* weight,
                                                         const FeatureOf& feature_of, int64_t in_features) {
  return multiply<T, Tile>(x, x_row_of, weight, feature_of, in_features, in_features);
}

}  // namespace llmb::cuda::mma_tiles
