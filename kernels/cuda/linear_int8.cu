// Up to 64 rows, bound by the weight's bytes: a block is 16 or 32 features and all rows, its 8 warps share out k.
// Features are rows of the first operand of `mma`, rows of x columns of the second; fragments come straight from
// memory, 16 bytes a lane, and the first ones of the weight are on their way while the kernel before runs. Not timed
// yet.
//
// More rows, and groups: as linear_mma and linear_grouped, with pairs of int8 for elements of 16 bits: twice the
// multiply-adds of an instruction.
#include "kernels/cuda/linear_int8.h"

#include "base/check.h"
#include "core/types.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/int8_output.h"
#include "kernels/cuda/mma_tiles.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/warp.h"

namespace llmb::cuda {

namespace {

using mma_tiles::Int8Pair;
using mma_tiles::Tiling;
using ManyRows = Tiling<128, 128, 2, 4, 4>;
using FewGroupedRows = Tiling<16, 64, 1, 4, 6>;
using ManyGroupedRows = Tiling<64, 128, 2, 4, 4>;

__device__ __forceinline__ const Int8Pair* pairs_of(const int8_t* values) {
  return reinterpret_cast<const Int8Pair*>(values);
}

// Calls write(row, column, sum) for each output of the block's tile.
template <class Tile, class Write>
__device__ __forceinline__ void for_each_sum(const Int8View& weight, const Int8Rows& x, int64_t rows,
                                             const Write& write) {
  const int64_t first_row = int64_t{blockIdx.x} * Tile::kTileM, first_col = int64_t{blockIdx.y} * Tile::kTileN;
  const auto row_of = [&](int row) { return first_row + row < rows ? first_row + row : -1; };
  const auto feature_of = [&](int col) { return first_col + col < weight.out_features ? first_col + col : -1; };
  const auto sums = mma_tiles::multiply<Int8Pair, Tile>(pairs_of(x.values), row_of, pairs_of(weight.weight), feature_of,
                                                        weight.row_bytes() / 2);
  sums.for_each([&](int row, int col, int32_t sum) {
    if (first_row + row < rows && first_col + col < weight.out_features) write(first_row + row, first_col + col, sum);
  });
}

template <class Out, class Tile>
__global__ void __launch_bounds__(Tile::kThreads)
    linear_int8_kernel(Int8View weight, Int8Rows x, Out* out, int64_t rows) {
  for_each_sum<Tile>(weight, x, rows, [&](int64_t row, int64_t col, int32_t sum) {
    const float* const bias = weight.bias == nullptr ? nullptr : weight.bias + col;
    out[row * weight.out_features + col] = from_float<Out>(int8_output(sum, weight.scales[col], x.scales[row], bias));
  });
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads)
    count_int8_differences_kernel(Int8View weight, Int8Rows x, int64_t rows, const int32_t* others,
                                  uint32_t* differences) {
  for_each_sum<Tile>(weight, x, rows, [&](int64_t row, int64_t col, int32_t sum) {
    if (others[row * weight.out_features + col] != sum) atomicAdd(differences, 1u);
  });
}

constexpr int kScaleThreads = 128;

// Bound by bytes: 4 of a sum and those of an output. A thread takes 8 columns of a row.
template <class Out>
__global__ void __launch_bounds__(kScaleThreads)
    scale_int8_sums_kernel(Int8View weight, Int8Rows x, const int32_t* sums, Out* out) {
  ptx::follow_previous_grid();
  const int64_t column = (int64_t{blockIdx.y} * kScaleThreads + threadIdx.x) * kPackWidth, row = blockIdx.x;
  if (column >= weight.out_features) return;
  using Sums = Pack<int32_t, kPackWidth>;
  const Sums own = *reinterpret_cast<const Sums*>(sums + row * weight.out_features + column);
  const float x_scale = x.scales[row];
  float outputs[kPackWidth];
#pragma unroll
  for (int i = 0; i < kPackWidth; ++i) {
    const float* const bias = weight.bias == nullptr ? nullptr : weight.bias + column + i;
    outputs[i] = int8_output(own.values[i], weight.scales[column + i], x_scale, bias);
  }
  store_floats(outputs, out + row * weight.out_features + column);
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
        from_float<Out>(int8_output(sum, scales[to_col], x.scales[row_of(row)], bias));
  });
}

constexpr int kFewWarps = 8, kFewThreads = kFewWarps * kWarp;
constexpr int kStepBytes = 64;  // of k: a lane's 16 bytes, by four lanes

// The numbers [k, k + 16) of a row, zeros where there are none. Not a branch: reads are on their way together.
__device__ __forceinline__ Pack<uint32_t, 4> load_words(const int8_t* row, int32_t k, int32_t size) {
  Pack<uint32_t, 4> words = *reinterpret_cast<const Pack<uint32_t, 4>*>(row + (k < size ? k : 0));
#pragma unroll
  for (uint32_t& word : words.values) word = k < size ? word : 0;
  return words;
}

// A warp's part of k, kSteps steps on their way at a time. Lane l reads features l / 4 and l / 4 + 8 of a tile and row
// l / 4: fragments of both hold the same numbers of k, in an order of their own. A warp's steps come in pairs, which
// are whole lines of 128 bytes. Waits for the kernel before.
template <int kFeatureTiles, int kRowTiles, int kSteps>
__device__ __forceinline__ void add_products(const int8_t* const (&w_rows)[2 * kFeatureTiles],
                                             const int8_t* const (&x_rows)[kRowTiles], int32_t row_bytes,
                                             int32_t (&own)[kFeatureTiles][kRowTiles][4]) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const auto k_of = [&](int step) { return (step / 2 * kFewWarps + warp) * 2 * kStepBytes + step % 2 * kStepBytes; };
  for (int first = 0; first == 0 || k_of(first) < row_bytes; first += kSteps) {
    Pack<uint32_t, 4> w[kSteps][2 * kFeatureTiles], v[kSteps][kRowTiles];
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
#pragma unroll
      for (int i = 0; i < 2 * kFeatureTiles; ++i)
        w[s][i] = load_words(w_rows[i], k_of(first + s) + lane % 4 * 16, row_bytes);
    if (first == 0) ptx::wait_for_previous_grid();  // no kernel writes what is read above
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) v[s][i] = load_words(x_rows[i], k_of(first + s) + lane % 4 * 16, row_bytes);
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
#pragma unroll
      for (int word = 0; word < 4; word += 2)
#pragma unroll
        for (int f = 0; f < kFeatureTiles; ++f)
#pragma unroll
          for (int i = 0; i < kRowTiles; ++i) {
            const uint32_t(&low)[4] = w[s][2 * f].values, (&high)[4] = w[s][2 * f + 1].values;
            const uint32_t(&of_row)[4] = v[s][i].values;
            ptx::mma_m16n8k32_int8(own[f][i], {low[word], high[word], low[word + 1], high[word + 1]},
                                   {of_row[word], of_row[word + 1]});
          }
  }
}

// kFeatureTiles tiles of 16 features, kRowTiles of 8 rows.
template <class Out, int kFeatureTiles, int kRowTiles, int kSteps>
__global__ void __launch_bounds__(kFewThreads, 2)
    linear_int8_few_kernel(Int8View weight, Int8Rows x, Out* out, int32_t rows) {
  ptx::launch_next_grid();
  constexpr int kFeatures = 16 * kFeatureTiles, kSums = kFeatures * 8 * kRowTiles;
  __shared__ int32_t sums[kSums];  // [rows, features]
  for (int i = threadIdx.x; i < kSums; i += kFewThreads) sums[i] = 0;
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  const int64_t first_feature = int64_t{blockIdx.x} * kFeatures;
  const auto row_bytes = static_cast<int32_t>(weight.row_bytes());
  const int8_t *w_rows[2 * kFeatureTiles], *x_rows[kRowTiles];
#pragma unroll
  for (int i = 0; i < 2 * kFeatureTiles; ++i) {
    const int64_t feature = first_feature + i * 8 + lane / 4;
    w_rows[i] = weight.weight + (feature < weight.out_features ? feature : 0) * row_bytes;
  }
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
    const int32_t row = i * 8 + lane / 4;
    x_rows[i] = x.values + int64_t{row < rows ? row : 0} * row_bytes;
  }
  int32_t own[kFeatureTiles][kRowTiles][4] = {};
  add_products<kFeatureTiles, kRowTiles, kSteps>(w_rows, x_rows, row_bytes, own);
#pragma unroll
  for (int f = 0; f < kFeatureTiles; ++f)
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        atomicAdd(&sums[(i * 8 + lane % 4 * 2 + e % 2) * kFeatures + f * 16 + lane / 4 + e / 2 * 8], own[f][i][e]);
  __syncthreads();
  for (int i = threadIdx.x; i < rows * kFeatures; i += kFewThreads) {
    const int64_t row = i / kFeatures, feature = first_feature + i % kFeatures;
    if (feature >= weight.out_features) continue;
    const float* const bias = weight.bias == nullptr ? nullptr : weight.bias + feature;
    out[row * weight.out_features + feature] =
        from_float<Out>(int8_output(sums[i], weight.scales[feature], x.scales[row], bias));
  }
}

template <int kFeatureTiles, int kRowTiles, int kSteps, class Out>
void launch_few(const Int8View& weight, const Int8Rows& x, int64_t rows, Out* out, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(weight.out_features, 16 * kFeatureTiles));
  launch_ahead({dim3(blocks), dim3(kFewThreads), 0, stream},
               linear_int8_few_kernel<Out, kFeatureTiles, kRowTiles, kSteps>, weight, x, out,
               static_cast<int32_t>(rows));
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
  if (rows <= 8) return launch_few<1, 1, 8>(weight, x, rows, out, stream);
  if (rows <= 16) return launch_few<1, 2, 4>(weight, x, rows, out, stream);
  if (rows <= 32) return launch_few<2, 4, 2>(weight, x, rows, out, stream);
  if (rows <= 64) return launch_few<2, 8, 1>(weight, x, rows, out, stream);
  launch_tiles<ManyRows>(weight, x, rows, out, stream);
}

template <class Out>
void scale_int8_sums(const Int8View& weight, const Int8Rows& x, int64_t rows, const int32_t* sums, Out* out,
                     cudaStream_t stream) {
  static_assert(kPackWidth == kScaledFeatures);
  LLMB_CHECK(weight.out_features % kScaledFeatures == 0);
  if (rows == 0) return;
  const auto chunks = static_cast<unsigned>(ceil_div(weight.out_features, kScaleThreads * kPackWidth));
  launch_ahead({dim3(static_cast<unsigned>(rows), chunks), dim3(kScaleThreads), 0, stream}, scale_int8_sums_kernel<Out>,
               weight, x, sums, out);
}

void count_int8_differences(const Int8View& weight, const Int8Rows& x, int64_t rows, const int32_t* sums,
                            uint32_t* differences, cudaStream_t stream) {
  if (rows == 0 || weight.out_features == 0) return;
  const dim3 grid(static_cast<unsigned>(ceil_div(rows, ManyRows::kTileM)),
                  static_cast<unsigned>(ceil_div(weight.out_features, ManyRows::kTileN)));
  launch({grid, dim3(ManyRows::kThreads), ManyRows::kSharedBytes, stream}, count_int8_differences_kernel<ManyRows>,
         weight, x, rows, sums, differences);
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
template void scale_int8_sums(const Int8View&, const Int8Rows&, int64_t, const int32_t*, float*, cudaStream_t);
template void scale_int8_sums(const Int8View&, const Int8Rows&, int64_t, const int32_t*, __nv_bfloat16*, cudaStream_t);
template void scale_int8_sums(const Int8View&, const Int8Rows&, int64_t, const int32_t*, __half*, cudaStream_t);
template void linear_grouped_int8(const GroupedWeights&, const Int8Rows&, const int32_t*, const RowTile*, int32_t,
                                  int32_t, float*, cudaStream_t);
template void linear_grouped_int8(const GroupedWeights&, const Int8Rows&, const int32_t*, const RowTile*, int32_t,
                                  int32_t, __nv_bfloat16*, cudaStream_t);
template void linear_grouped_int8(const GroupedWeights&, const Int8Rows&, const int32_t*, const RowTile*, int32_t,
                                  int32_t, __half*, cudaStream_t);

}  // namespace llmb::cuda
