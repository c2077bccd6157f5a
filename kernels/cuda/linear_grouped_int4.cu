// As linear_grouped, of int4 units: a block computes a tile of rows of one expert by a tile of features, all of its k.
#include "base/check.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/int4_tiles.h"
#include "kernels/cuda/linear_int4.h"

namespace llmb::cuda {

namespace {

using int4::kThreads;
using int4::Shape;
using int4::Sums;

template <class T, class S>
__global__ void __launch_bounds__(kThreads, 2)
    linear_grouped_int4_kernel(GroupedWeights weights, const T* x, const int32_t* x_rows, const RowTile* tiles,
                               int num_stages, T* out) {
  if (tiles[blockIdx.x].expert < 0) return;
  const auto row_of = [&](int row) -> const T* {
    const RowTile tile = tiles[blockIdx.x];
    if (row >= tile.num_rows) return nullptr;
    const int64_t index = tile.first_row + row;
    return x + (x_rows == nullptr ? index : x_rows[index]) * weights.in_features;
  };
  const auto* const units = static_cast<const uint8_t*>(weights.weights[tiles[blockIdx.x].expert]);
  const int num_steps = static_cast<int>(int4::num_steps(weights.in_features));
  const int begin = static_cast<int>(blockIdx.y) * num_steps, end = begin + num_steps;
  int4::Loader<T, S> loader(units, x, row_of, weights.in_features, num_steps, begin, end);
  int4::multiply_units(
      loader, num_stages, num_steps, begin, end, [&](const Sums<T, S>& sums, int feature_tile, int, int) {
        const RowTile tile = tiles[blockIdx.x];  // read again: it would take registers of the main loop
        const T* const bias = weights.biases == nullptr ? nullptr : static_cast<const T*>(weights.biases[tile.expert]);
        sums.for_each([&](int row, int in_tile, float sum) {
          const int64_t feature = int64_t{feature_tile} * int4::kTileFeatures + in_tile;
          if (row >= tile.num_rows || feature >= weights.out_features) return;
          out[(tile.first_row + row) * weights.out_features + feature] =
              from_float<T>(sum + (bias == nullptr ? 0.0f : to_float(bias[feature])));
        });
      });
}

template <class T, class S>
void launch_tiles(const GroupedWeights& weights, const T* x, const int32_t* x_rows, const RowTile* tiles,
                  int32_t num_tiles, T* out, cudaStream_t stream) {
  constexpr int kStages = int4::num_stages<S>(tuning::kInt4RingBytes);
  const dim3 grid(static_cast<unsigned>(num_tiles), static_cast<unsigned>(int4::num_tiles(weights.out_features)));
  launch({grid, dim3(kThreads), size_t{kStages} * S::kStageBytes, stream}, linear_grouped_int4_kernel<T, S>, weights, x,
         x_rows, tiles, kStages, out);
}

}  // namespace

template <class T>
void linear_grouped_int4(const GroupedWeights& weights, const T* x, const int32_t* x_rows, const RowTile* tiles,
                         int32_t num_tiles, int32_t tile_rows, T* out, cudaStream_t stream) {
  LLMB_CHECK(weights.is_int4 && LinearInt4::takes(weights.out_features, weights.in_features));
  LLMB_CHECK(tile_rows == 16 || tile_rows == 64);
  if (num_tiles == 0 || weights.out_features == 0) return;
  const auto launch = [&]<int kRows>(std::integral_constant<int, kRows>) {
    if (weights.has_zeros) launch_tiles<T, Shape<kRows, true>>(weights, x, x_rows, tiles, num_tiles, out, stream);
    else launch_tiles<T, Shape<kRows, false>>(weights, x, x_rows, tiles, num_tiles, out, stream);
  };
  if (tile_rows == 16) launch(std::integral_constant<int, 16>());
  else launch(std::integral_constant<int, 64>());
}

template void linear_grouped_int4(const GroupedWeights&, const __nv_bfloat16*, const int32_t*, const RowTile*, int32_t,
                                  int32_t, __nv_bfloat16*, cudaStream_t);
template void linear_grouped_int4(const GroupedWeights&, const __half*, const int32_t*, const RowTile*, int32_t,
                                  int32_t, __half*, cudaStream_t);

}  // namespace llmb::cuda
