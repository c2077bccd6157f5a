#include "kernels/cuda/linear_mma.h"

#include "kernels/cuda/device.h"
#include "kernels/cuda/ptx.h"

namespace llmb::cuda {

namespace {

constexpr int kTileK = 64;                 // elements: rows of 128 bytes in shared memory
constexpr int kChunksPerRow = kTileK / 8;  // of 16 bytes

// A block computes kTileM x kTileN outputs; its kWarpsM x kWarpsN warps share them out. kStages tiles of x and of the
// weight are in shared memory or on their way.
template <int kM, int kN, int kWarpsAlongM, int kWarpsAlongN, int kNumStages>
struct Tiling {
  static constexpr int kTileM = kM, kTileN = kN, kWarpsM = kWarpsAlongM, kWarpsN = kWarpsAlongN, kStages = kNumStages;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kWarpRows = kM / kWarpsM, kWarpCols = kN / kWarpsN;
  static constexpr int kStageElements = (kM + kN) * kTileK;
  static constexpr size_t kSharedBytes = size_t{2} * kStages * kStageElements;
};
using FewRows = Tiling<16, 32, 1, 4, 8>;  // decode: as many weight bytes in flight as an SM can hold
using SomeRows = Tiling<64, 32, 4, 1, 6>;
using ManyRows = Tiling<128, 128, 2, 4, 4>;

// 16-byte chunks of a tile row change places by the row, so that the eight rows of an 8x8 matrix lie in different
// banks.
__device__ __forceinline__ int element_of(int row, int chunk) {
  return row * kTileK + ((chunk ^ (row & (kChunksPerRow - 1))) * 8);
}

// Rows [first_row, first_row + kRows) x columns [k, k + kTileK) of a row-major matrix; what lies outside is zero.
template <class T, int kRows, int kThreads>
__device__ __forceinline__ void load_tile(T* tile, const T* matrix, int64_t first_row, int64_t num_rows, int64_t k,
                                          int64_t num_cols) {
#pragma unroll
  for (int i = threadIdx.x; i < kRows * kChunksPerRow; i += kThreads) {
    const int row = i / kChunksPerRow, chunk = i % kChunksPerRow;
    const int64_t column = k + chunk * 8;
    const bool is_inside = first_row + row < num_rows && column < num_cols;
    const T* const from = is_inside ? matrix + (first_row + row) * num_cols + column : matrix;
    ptx::cp_async16(tile + element_of(row, chunk), from, is_inside);
  }
}

template <class T, class Out, class Tile>
__global__ void __launch_bounds__(Tile::kThreads)
    linear_mma_kernel(const T* weight, const T* bias, const T* x, Out* out, int64_t rows, int64_t out_features,
                      int64_t in_features) {
  constexpr int kRowTiles = Tile::kWarpRows / 16, kColTiles = Tile::kWarpCols / 8;
  T* const shared = dynamic_shared<T>();
  const int64_t first_row = int64_t{blockIdx.x} * Tile::kTileM, first_col = int64_t{blockIdx.y} * Tile::kTileN;
  const int num_steps = static_cast<int>((in_features + kTileK - 1) / kTileK);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp / Tile::kWarpsN * Tile::kWarpRows, warp_col = warp % Tile::kWarpsN * Tile::kWarpCols;

  const auto load_stage = [&](int step) {
    if (step < num_steps) {
      T* const x_tile = shared + step % Tile::kStages * Tile::kStageElements;
      T* const w_tile = x_tile + Tile::kTileM * kTileK;
      const int64_t k = int64_t{step} * kTileK;
      load_tile<T, Tile::kTileN, Tile::kThreads>(w_tile, weight, first_col, out_features, k, in_features);
      load_tile<T, Tile::kTileM, Tile::kThreads>(x_tile, x, first_row, rows, k, in_features);
    }
    ptx::cp_async_commit();  // an empty group keeps the count
  };

  float sums[kRowTiles][kColTiles][4] = {};
#pragma unroll
  for (int step = 0; step < Tile::kStages - 1; ++step) load_stage(step);
  for (int step = 0; step < num_steps; ++step) {
    ptx::cp_async_wait<Tile::kStages - 2>();
    __syncthreads();  // every thread's copies have landed, and nobody reads the stage that is filled next
    load_stage(step + Tile::kStages - 1);
    const T* const x_tile = shared + step % Tile::kStages * Tile::kStageElements;
    const T* const w_tile = x_tile + Tile::kTileM * kTileK;
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
          ptx::ldmatrix_x4(pair,
                           w_tile + element_of(warp_col + j * 8 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
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
        for (int j = 0; j < kColTiles; ++j) ptx::mma_m16n8k16<T>(sums[i][j], a[i], b[j]);
    }
  }

#pragma unroll
  for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
    for (int j = 0; j < kColTiles; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t row = first_row + warp_row + i * 16 + half * 8 + lane / 4;
        const int64_t col = first_col + warp_col + j * 8 + lane % 4 * 2;
        if (row >= rows) continue;
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          if (col + c >= out_features) continue;
          const float sum = sums[i][j][half * 2 + c];
          out[row * out_features + col + c] = from_float<Out>(bias == nullptr ? sum : sum + to_float(bias[col + c]));
        }
      }
}

// One thread an output: for fp32, and for sizes that tensor cores cannot load.
constexpr int kScalarRows = 4, kScalarCols = 32;
template <class T, class Out>
__global__ void linear_scalar_kernel(const T* weight, const T* bias, const T* x, Out* out, int64_t rows,
                                     int64_t out_features, int64_t in_features) {
  __shared__ float x_tile[kScalarRows][kScalarCols];
  __shared__ float w_tile[kScalarCols][kScalarCols + 1];
  const int64_t row = int64_t{blockIdx.x} * kScalarRows + threadIdx.y;
  const int64_t col = int64_t{blockIdx.y} * kScalarCols + threadIdx.x;
  float sum = 0;
  for (int64_t k = 0; k < in_features; k += kScalarCols) {
    const int64_t own_k = k + threadIdx.x;
    x_tile[threadIdx.y][threadIdx.x] =
        row < rows && own_k < in_features ? to_float(x[row * in_features + own_k]) : 0.0f;
    for (int i = threadIdx.y; i < kScalarCols; i += kScalarRows) {
      const int64_t w_row = int64_t{blockIdx.y} * kScalarCols + i;
      w_tile[i][threadIdx.x] =
          w_row < out_features && own_k < in_features ? to_float(weight[w_row * in_features + own_k]) : 0.0f;
    }
    __syncthreads();
    for (int i = 0; i < kScalarCols; ++i) sum = fmaf(x_tile[threadIdx.y][i], w_tile[threadIdx.x][i], sum);
    __syncthreads();
  }
  if (row < rows && col < out_features)
    out[row * out_features + col] = from_float<Out>(bias == nullptr ? sum : sum + to_float(bias[col]));
}

unsigned num_tiles(int64_t size, int64_t tile) { return static_cast<unsigned>((size + tile - 1) / tile); }

template <class Tile, class T, class Out>
void launch_tiles(const LinearView& weight, const T* x, int64_t rows, Out* out, cudaStream_t stream) {
  // Blocks that share a part of the weight are neighbours, so that it is read from memory once.
  const dim3 grid(num_tiles(rows, Tile::kTileM), num_tiles(weight.out_features, Tile::kTileN));
  launch({grid, dim3(Tile::kThreads), Tile::kSharedBytes, stream}, linear_mma_kernel<T, Out, Tile>,
         static_cast<const T*>(weight.weight), static_cast<const T*>(weight.bias), x, out, rows, weight.out_features,
         weight.in_features);
}

}  // namespace

template <class T, class Out>
void linear_mma(const LinearView& weight, const T* x, int64_t rows, Out* out, cudaStream_t stream) {
  if (rows == 0 || weight.out_features == 0) return;
  if constexpr (!std::is_same_v<T, float>) {
    if (weight.in_features % 8 == 0) {
      if (rows <= FewRows::kTileM) return launch_tiles<FewRows>(weight, x, rows, out, stream);
      if (rows <= SomeRows::kTileM) return launch_tiles<SomeRows>(weight, x, rows, out, stream);
      return launch_tiles<ManyRows>(weight, x, rows, out, stream);
    }
  }
  const dim3 grid(num_tiles(rows, kScalarRows), num_tiles(weight.out_features, kScalarCols));
  launch({grid, dim3(kScalarCols, kScalarRows), 0, stream}, linear_scalar_kernel<T, Out>,
         static_cast<const T*>(weight.weight), static_cast<const T*>(weight.bias), x, out, rows, weight.out_features,
         weight.in_features);
}

template void linear_mma(const LinearView&, const float*, int64_t, float*, cudaStream_t);
template void linear_mma(const LinearView&, const __nv_bfloat16*, int64_t, __nv_bfloat16*, cudaStream_t);
template void linear_mma(const LinearView&, const __nv_bfloat16*, int64_t, float*, cudaStream_t);
template void linear_mma(const LinearView&, const __half*, int64_t, __half*, cudaStream_t);
template void linear_mma(const LinearView&, const __half*, int64_t, float*, cudaStream_t);

}  // namespace llmb::cuda
