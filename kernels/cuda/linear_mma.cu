#include "kernels/cuda/linear_mma.h"

#include "kernels/cuda/device.h"
#include "kernels/cuda/mma_tiles.h"
#include "kernels/cuda/scalar_tiles.h"

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

template <class T, class Out>
__global__ void linear_scalar_kernel(const T* weight, const T* bias, const T* x, Out* out, int64_t rows,
                                     int64_t out_features, int64_t in_features) {
  const int64_t row = int64_t{blockIdx.x} * scalar_tiles::kRows + threadIdx.y;
  const int64_t first_col = int64_t{blockIdx.y} * scalar_tiles::kCols, col = first_col + threadIdx.x;
  const float sum = scalar_tiles::multiply(x, row < rows ? row : -1, weight, first_col, out_features, in_features,
                                           in_features);
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
  const dim3 grid(num_tiles(rows, scalar_tiles::kRows), num_tiles(weight.out_features, scalar_tiles::kCols));
  launch({grid, dim3(scalar_tiles::kCols, scalar_tiles::kRows), 0, stream}, linear_scalar_kernel<T, Out>,
         static_cast<const T*>(weight.weight), static_cast<const T*>(weight.bias), x, out, rows, weight.out_features,
         weight.in_features);
}

template void linear_mma(const LinearView&, const float*, int64_t, float*, cudaStream_t);
template void linear_mma(const LinearView&, const __nv_bfloat16*, int64_t, __nv_bfloat16*, cudaStream_t);
template void linear_mma(const LinearView&, const __nv_bfloat16*, int64_t, float*, cudaStream_t);
template void linear_mma(const LinearView&, const __half*, int64_t, __half*, cudaStream_t);
template void linear_mma(const LinearView&, const __half*, int64_t, float*, cudaStream_t);

}  // namespace llmb::cuda
