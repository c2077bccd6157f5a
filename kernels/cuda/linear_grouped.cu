// As linear_mma, with one more step of indirection: a block computes a tile of rows of one expert by a tile of
// features. Few rows: bound by the bytes of the experts that are chosen; many: by multiply-adds.
#include "kernels/cuda/linear_grouped.h"

#include "base/check.h"
#include "core/types.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/mma_tiles.h"

namespace llmb::cuda {

namespace {

using mma_tiles::Tiling;
using FewRows = Tiling<16, 64, 1, 4, 6>;
using ManyRows = Tiling<64, 128, 2, 4, 4>;
constexpr int kScalarRows = 4, kScalarCols = 32;

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::kThreads)
    linear_grouped_kernel(GroupedWeights weights, const T* x, const int32_t* x_rows, const RowTile* tiles, T* out) {
  const RowTile tile = tiles[blockIdx.x];
  if (tile.expert < 0) return;
  const T* const weight = static_cast<const T*>(weights.weights[tile.expert]);
  const T* const bias = weights.biases == nullptr ? nullptr : static_cast<const T*>(weights.biases[tile.expert]);
  const int64_t out_features = weights.out_features, first_col = int64_t{blockIdx.y} * Tile::kTileN;
  const auto row_of = [&](int row) -> int64_t {
    if (row >= tile.num_rows) return -1;
    return x_rows == nullptr ? tile.first_row + row : x_rows[tile.first_row + row];
  };
  const auto feature_of = [&](int col) { return first_col + col < out_features ? first_col + col : -1; };
  const auto sums = mma_tiles::multiply<T, Tile>(x, row_of, weight, feature_of, weights.in_features);
  sums.for_each([&](int row, int col, float sum) {
    const int64_t to_col = first_col + col;
    if (row >= tile.num_rows || to_col >= out_features) return;
    out[(tile.first_row + row) * out_features + to_col] =
        from_float<T>(bias == nullptr ? sum : sum + to_float(bias[to_col]));
  });
}

// One thread an output: for fp32, and for sizes that tensor cores cannot load.
template <class T>
__global__ void linear_grouped_scalar_kernel(GroupedWeights weights, const T* x, const int32_t* x_rows,
                                             const RowTile* tiles, T* out) {
  __shared__ float x_tile[kScalarRows][kScalarCols];
  __shared__ float w_tile[kScalarCols][kScalarCols + 1];
  const RowTile tile = tiles[blockIdx.x];
  if (tile.expert < 0) return;
  const T* const weight = static_cast<const T*>(weights.weights[tile.expert]);
  const T* const bias = weights.biases == nullptr ? nullptr : static_cast<const T*>(weights.biases[tile.expert]);
  const int64_t in_features = weights.in_features, out_features = weights.out_features;
  const int64_t col = int64_t{blockIdx.y} * kScalarCols + threadIdx.x;
  for (int first = 0; first < tile.num_rows; first += kScalarRows) {
    const int row = first + static_cast<int>(threadIdx.y);
    const bool has_row = row < tile.num_rows;
    int64_t x_row = tile.first_row + row;
    if (has_row && x_rows != nullptr) x_row = x_rows[x_row];
    float sum = 0;
    for (int64_t k = 0; k < in_features; k += kScalarCols) {
      const int64_t own_k = k + threadIdx.x;
      x_tile[threadIdx.y][threadIdx.x] =
          has_row && own_k < in_features ? to_float(x[x_row * in_features + own_k]) : 0.0f;
      for (int i = threadIdx.y; i < kScalarCols; i += kScalarRows) {
        const int64_t w_row = int64_t{blockIdx.y} * kScalarCols + i;
        w_tile[i][threadIdx.x] =
            w_row < out_features && own_k < in_features ? to_float(weight[w_row * in_features + own_k]) : 0.0f;
      }
      __syncthreads();
      for (int i = 0; i < kScalarCols; ++i) sum = fmaf(x_tile[threadIdx.y][i], w_tile[threadIdx.x][i], sum);
      __syncthreads();
    }
    if (has_row && col < out_features)
      out[(int64_t{tile.first_row} + row) * out_features + col] =
          from_float<T>(bias == nullptr ? sum : sum + to_float(bias[col]));
  }
}

template <class Tile, class T>
void launch_tiles(const GroupedWeights& weights, const T* x, const int32_t* x_rows, const RowTile* tiles,
                  int32_t num_tiles, T* out, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(num_tiles),
                  static_cast<unsigned>(ceil_div(weights.out_features, Tile::kTileN)));
  launch({grid, dim3(Tile::kThreads), Tile::kSharedBytes, stream}, linear_grouped_kernel<T, Tile>, weights, x, x_rows,
         tiles, out);
}

}  // namespace

int32_t grouped_tile_rows(int64_t rows, int32_t num_experts) {
  return rows >= int64_t{num_experts} * ManyRows::kTileM / 2 ? ManyRows::kTileM : FewRows::kTileM;
}

template <class T>
void linear_grouped(const GroupedWeights& weights, const T* x, const int32_t* x_rows, const RowTile* tiles,
                    int32_t num_tiles, int32_t tile_rows, T* out, cudaStream_t stream) {
  LLMB_CHECK(tile_rows == FewRows::kTileM || tile_rows == ManyRows::kTileM);
  if (num_tiles == 0 || weights.out_features == 0) return;
  if constexpr (!std::is_same_v<T, float>) {
    if (weights.in_features % 8 == 0) {
      if (tile_rows == FewRows::kTileM) return launch_tiles<FewRows>(weights, x, x_rows, tiles, num_tiles, out, stream);
      return launch_tiles<ManyRows>(weights, x, x_rows, tiles, num_tiles, out, stream);
    }
  }
  const dim3 grid(static_cast<unsigned>(num_tiles), static_cast<unsigned>(ceil_div(weights.out_features, kScalarCols)));
  launch({grid, dim3(kScalarCols, kScalarRows), 0, stream}, linear_grouped_scalar_kernel<T>, weights, x, x_rows, tiles,
         out);
}

template void linear_grouped(const GroupedWeights&, const float*, const int32_t*, const RowTile*, int32_t, int32_t,
                             float*, cudaStream_t);
template void linear_grouped(const GroupedWeights&, const __nv_bfloat16*, const int32_t*, const RowTile*, int32_t,
                             int32_t, __nv_bfloat16*, cudaStream_t);
template void linear_grouped(const GroupedWeights&, const __half*, const int32_t*, const RowTile*, int32_t, int32_t,
                             __half*, cudaStream_t);

}  // namespace llmb::cuda
