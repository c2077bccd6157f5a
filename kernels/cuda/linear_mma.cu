#include "kernels/cuda/linear_mma.h"

#include "kernels/cuda/device.h"
#include "kernels/cuda/mma_tiles.h"

namespace llmb::cuda {

namespace {

using mma_tiles::Tiling;
using FewRows = Tiling<16, 32, 1, 4, 8>;  // decode: as many weight bytes in flight as an SM can hold
using SomeRows = Tiling<64, 32, 4, 1, 6>;
using ManyRows = Tiling<128, 128, 2, 4, 4>;

template <class T, class Out, class Tile>
__global__ void __launch_bounds__(Tile::kThreads)
    linear_mma_kernel(const T* weight, const T* bias, const T* x, Out* out, int64_t rows, int64_t out_features,
                      int64_t in_features) {
  const int64_t first_row = int64_t{blockIdx.x} * Tile::kTileM, first_col = int64_t{blockIdx.y} * Tile::kTileN;
  const auto row_of = [&](int row) { return first_row + row < rows ? first_row + row : -1; };
  const auto feature_of = [&](int col) { return first_col + col < out_features ? first_col + col : -1; };
  const auto sums = mma_tiles::multiply<T, Tile>(x, row_of, weight, feature_of, in_features);
  sums.for_each([&](int row, int col, float sum) {
    const int64_t to_row = first_row + row, to_col = first_col + col;
    if (to_row >= rows || to_col >= out_features) return;
    out[to_row * out_features + to_col] = from_float<Out>(bias == nullptr ? sum : sum + to_float(bias[to_col]));
  });
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
