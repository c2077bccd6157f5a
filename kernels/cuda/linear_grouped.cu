// As linear_mma, with one more step of indirection: a block computes a tile of rows of one expert by a tile of
// features. Few rows: bound by the bytes of the experts that are chosen; many: by multiply-adds.
#include "kernels/cuda/linear_grouped.h"

#include "base/check.h"
#include "core/types.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/mma_tiles.h"
#include "kernels/cuda/scalar_tiles.h"

namespace llmb::cuda {

namespace {

using mma_tiles::Tiling;
using FewRows = Tiling<16, 64, 1, 4, 6>;
using ManyRows = Tiling<64, 128, 2, 4, 4>;

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

template <class T>
__global__ void linear_grouped_scalar_kernel(GroupedWeights weights, const T* x, const int32_t* x_rows,
                                             const RowTile* tiles, T* out) {
  const RowTile tile = tiles[blockIdx.x];
  if (tile.expert < 0) return;
  const T* const weight = static_cast<const T*>(weights.weights[tile.expert]);
  const T* const bias = weights.biases == nullptr ? nullptr : static_cast<const T*>(weights.biases[tile.expert]);
  const int64_t out_features = weights.out_features;
  const int64_t first_col = int64_t{blockIdx.y} * scalar_tiles::kCols, col = first_col + threadIdx.x;
  for (int first = 0; first < tile.num_rows; first += scalar_tiles::kRows) {
    const int row = first + static_cast<int>(threadIdx.y);
    const bool has_row = row < tile.num_rows;
    int64_t x_row = has_row ? int64_t{tile.first_row} + row : -1;
    if (has_row && x_rows != nullptr) x_row = x_rows[x_row];
    const float sum = scalar_tiles::multiply(x, x_row, weight, first_col, out_features, weights.in_features,
                                             weights.in_features);
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
  const dim3 grid(static_cast<unsigned>(num_tiles),
                  static_cast<unsigned>(ceil_div(weights.out_features, scalar_tiles::kCols)));
  launch({grid, dim3(scalar_tiles::kCols, scalar_tiles::kRows), 0, stream}, linear_grouped_scalar_kernel<T>, weights, x,
         x_rows, tiles, out);
}

template void linear_grouped(const GroupedWeights&, const float*, const int32_t*, const RowTile*, int32_t, int32_t,
                             float*, cudaStream_t);
template void linear_grouped(const GroupedWeights&, const __nv_bfloat16*, const int32_t*, const RowTile*, int32_t,
                             int32_t, __nv_bfloat16*, cudaStream_t);
template void linear_grouped(const GroupedWeights&, const __half*, const int32_t*, const RowTile*, int32_t, int32_t,
                             __half*, cudaStream_t);

}  // namespace llmb::cuda
