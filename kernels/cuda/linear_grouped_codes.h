// As linear_grouped, of weights of few bits: a block computes a tile of rows of one expert by a tile of features, all
// of its k. The kernel of linear_grouped_int4 and linear_grouped_fp8, and its launch.
#pragma once

#include "base/check.h"
#include "kernels/cuda/code_tiles.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/linear_grouped.h"

namespace llmb::cuda::code_tiles {

template <class T, class S>
__global__ void __launch_bounds__(kThreads, 2)
    linear_grouped_codes_kernel(GroupedWeights weights, const T* x, const int32_t* x_rows, const RowTile* tiles,
                                int num_stages, T* out) {
  if (tiles[blockIdx.x].expert < 0) return;
  const auto row_of = [&](int row) -> const T* {
    const RowTile tile = tiles[blockIdx.x];
    if (row >= tile.num_rows) return nullptr;
    const int64_t index = tile.first_row + row;
    return x + (x_rows == nullptr ? index : x_rows[index]) * weights.in_features;
  };
  const auto weight = S::Codes::source(weights.weights[tiles[blockIdx.x].expert], weights.out_features);
  const auto steps = static_cast<int>(num_steps(weights.in_features));
  const int begin = static_cast<int>(blockIdx.y) * steps, end = begin + steps;
  Loader<T, S> loader(weight, x, row_of, weights.in_features, steps, begin, end);
  multiply_units(loader, num_stages, steps, begin, end, [&](const Sums<T, S>& sums, int feature_tile, int, int) {
    const RowTile tile = tiles[blockIdx.x];  // read again: it would take registers of the main loop
    const T* const bias = weights.biases == nullptr ? nullptr : static_cast<const T*>(weights.biases[tile.expert]);
    sums.for_each([&](int row, int in_tile, float sum) {
      const int64_t feature = int64_t{feature_tile} * kTileFeatures + in_tile;
      if (row >= tile.num_rows || feature >= weights.out_features) return;
      if constexpr (S::Codes::kHasRowScales) sum = __fmul_rn(sum, weights.scales[tile.expert][feature]);
      out[(tile.first_row + row) * weights.out_features + feature] =
          from_float<T>(sum + (bias == nullptr ? 0.0f : to_float(bias[feature])));
    });
  });
}

template <class T, class S>
void launch_grouped(const GroupedWeights& weights, const T* x, const int32_t* x_rows, const RowTile* tiles,
                    int32_t num_row_tiles, T* out, cudaStream_t stream) {
  constexpr int kStages = num_stages<S>(tuning::kInt4RingBytes);
  const dim3 grid(static_cast<unsigned>(num_row_tiles), static_cast<unsigned>(num_tiles(weights.out_features)));
  launch({grid, dim3(kThreads), size_t{kStages} * S::kStageBytes, stream}, linear_grouped_codes_kernel<T, S>, weights,
         x, x_rows, tiles, kStages, out);
}

// tile_rows: 16 or 64.
template <class T, class Codes>
void run_grouped(const GroupedWeights& weights, const T* x, const int32_t* x_rows, const RowTile* tiles,
                 int32_t num_row_tiles, int32_t tile_rows, T* out, cudaStream_t stream) {
  LLMB_CHECK(tile_rows == 16 || tile_rows == 64);
  if (num_row_tiles == 0 || weights.out_features == 0) return;
  if (tile_rows == 16) launch_grouped<T, Shape<16, Codes>>(weights, x, x_rows, tiles, num_row_tiles, out, stream);
  else launch_grouped<T, Shape<64, Codes>>(weights, x, x_rows, tiles, num_row_tiles, out, stream);
}

}  // namespace llmb::cuda::code_tiles
