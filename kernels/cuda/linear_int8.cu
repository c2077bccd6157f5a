// As linear_mma and linear_grouped, with pairs of int8 for elements of 16 bits: half the bytes of a weight, which bind
// with few rows, and twice the multiply-adds of an instruction, which bind with many.
#include "kernels/cuda/linear_int8.h"

#include "base/check.h"
#include "core/types.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/mma_tiles.h"

namespace llmb::cuda {

namespace {

using mma_tiles::Int8Pair;
using mma_tiles::Tiling;
using FewRows = Tiling<16, 32, 1, 4, 8>;
using SomeRows = Tiling<64, 32, 4, 1, 6>;
using ManyRows = Tiling<128, 128, 2, 4, 4>;
using FewGroupedRows = Tiling<16, 64, 1, 4, 6>;
using ManyGroupedRows = Tiling<64, 128, 2, 4, 4>;

__device__ __forceinline__ const Int8Pair* pairs_of(const int8_t* values) {
  return reinterpret_cast<const Int8Pair*>(values);
}

// Not one fused multiply and add: the CPU's bits.
__device__ __forceinline__ float output_of(int32_t sum, float scale, float x_scale, const float* bias) {
  const float value = __fmul_rn(__fmul_rn(static_cast<float>(sum), scale), x_scale);
  return bias == nullptr ? value : __fadd_rn(value, *bias);
}

template <class Out, class Tile>
__global__ void __launch_bounds__(Tile::kThreads)
    linear_int8_kernel(Int8View weight, Int8Rows x, Out* out, int64_t rows) {
  const int64_t first_row = int64_t{blockIdx.x} * Tile::kTileM, first_col = int64_t{blockIdx.y} * Tile::kTileN;
  const auto row_of = [&](int row) { return first_row + row < rows ? first_row + row : -1; };
  const auto feature_of = [&](int col) { return first_col + col < weight.out_features ? first_col + col : -1; };
  const auto sums = mma_tiles::multiply<Int8Pair, Tile>(pairs_of(x.values), row_of, pairs_of(weight.weight), feature_of,
                                                        weight.row_bytes() / 2);
  sums.for_each([&](int row, int col, int32_t sum) {
    const int64_t to_row = first_row + row, to_col = first_col + col;
    if (to_row >= rows || to_col >= weight.out_features) return;
    const float* const bias = weight.bias == nullptr ? nullptr : weight.bias + to_col;
    out[to_row * weight.out_features + to_col] =
        from_float<Out>(output_of(sum, weight.scales[to_col], x.scales[to_row], bias));
  });
}

template <class Out, class Tile>
__global__ void __launch_bounds__(Tile::kThreads)
    linear_grouped_int8_kernel(GroupedWeights weights, Int8Rows x, const int32_t* x_rows, const RowTile* tiles,
                               Out* out) {
  const RowTile tile = tiles[blockIdx.x];
  if (tile.expert < 0) return;
  const auto* const weight = static_cast<const int8_t*>(weights.weights[tile.expert]);
  const float* const scales = weights.scales[tile.expert];
  const auto* const biases =
      weights.biases == nullptr ? nullptr : static_cast<const float*>(weights.biases[tile.expert]);
  const int64_t out_features = weights.out_features, first_col = int64_t{blockIdx.y} * Tile::kTileN;
  const auto row_of = [&](int row) -> int64_t {
    if (row >= tile.num_rows) return -1;
    return x_rows == nullptr ? tile.first_row + row : x_rows[tile.first_row + row];
  };
  const auto feature_of = [&](int col) { return first_col + col < out_features ? first_col + col : -1; };
  const auto sums = mma_tiles::multiply<Int8Pair, Tile>(pairs_of(x.values), row_of, pairs_of(weight), feature_of,
                                                        int8_row_bytes(weights.in_features) / 2);
  sums.for_each([&](int row, int col, int32_t sum) {
    const int64_t to_col = first_col + col;
    if (row >= tile.num_rows || to_col >= out_features) return;
    const float* const bias = biases == nullptr ? nullptr : biases + to_col;
    out[(tile.first_row + row) * out_features + to_col] =
        from_float<Out>(output_of(sum, scales[to_col], x.scales[row_of(row)], bias));
  });
}

template <class Tile, class Out>
void launch_tiles(const Int8View& weight, const Int8Rows& x, int64_t rows, Out* out, cudaStream_t stream) {
  // Blocks that share a part of the weight are neighbours, so that it is read from memory once.
  const dim3 grid(static_cast<unsigned>(ceil_div(rows, Tile::kTileM)),
                  static_cast<unsigned>(ceil_div(weight.out_features, Tile::kTileN)));
  launch({grid, dim3(Tile::kThreads), Tile::kSharedBytes, stream}, linear_int8_kernel<Out, Tile>, weight, x, out, rows);
}

template <class Tile, class Out>
void launch_grouped(const GroupedWeights& weights, const Int8Rows& x, const int32_t* x_rows, const RowTile* tiles,
                    int32_t num_tiles, Out* out, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(num_tiles),
                  static_cast<unsigned>(ceil_div(weights.out_features, Tile::kTileN)));
  launch({grid, dim3(Tile::kThreads), Tile::kSharedBytes, stream}, linear_grouped_int8_kernel<Out, Tile>, weights, x,
         x_rows, tiles, out);
}

}  // namespace

template <class Out>
void linear_int8(const Int8View& weight, const Int8Rows& x, int64_t rows, Out* out, cudaStream_t stream) {
  LLMB_CHECK(weight.in_features <= kMaxInt8Features);
  if (rows == 0 || weight.out_features == 0) return;
  if (rows <= FewRows::kTileM) return launch_tiles<FewRows>(weight, x, rows, out, stream);
  if (rows <= SomeRows::kTileM) return launch_tiles<SomeRows>(weight, x, rows, out, stream);
  launch_tiles<ManyRows>(weight, x, rows, out, stream);
}

template <class Out>
void linear_grouped_int8(const GroupedWeights& weights, const Int8Rows& x, const int32_t* x_rows, const RowTile* tiles,
                         int32_t num_tiles, int32_t tile_rows, Out* out, cudaStream_t stream) {
  LLMB_CHECK(weights.scales != nullptr && weights.in_features <= kMaxInt8Features);
  LLMB_CHECK(tile_rows == FewGroupedRows::kTileM || tile_rows == ManyGroupedRows::kTileM);
  if (num_tiles == 0 || weights.out_features == 0) return;
  if (tile_rows == FewGroupedRows::kTileM)
    return launch_grouped<FewGroupedRows>(weights, x, x_rows, tiles, num_tiles, out, stream);
  launch_grouped<ManyGroupedRows>(weights, x, x_rows, tiles, num_tiles, out, stream);
}

template void linear_int8(const Int8View&, const Int8Rows&, int64_t, float*, cudaStream_t);
template void linear_int8(const Int8View&, const Int8Rows&, int64_t, __nv_bfloat16*, cudaStream_t);
template void linear_int8(const Int8View&, const Int8Rows&, int64_t, __half*, cudaStream_t);
template void linear_grouped_int8(const GroupedWeights&, const Int8Rows&, const int32_t*, const RowTile*, int32_t,
                                  int32_t, float*, cudaStream_t);
template void linear_grouped_int8(const GroupedWeights&, const Int8Rows&, const int32_t*, const RowTile*, int32_t,
                                  int32_t, __nv_bfloat16*, cudaStream_t);
template void linear_grouped_int8(const GroupedWeights&, const Int8Rows&, const int32_t*, const RowTile*, int32_t,
                                  int32_t, __half*, cudaStream_t);

}  // namespace llmb::cuda
