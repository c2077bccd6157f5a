// As linear_mma, with one more step of indirection: a block computes a tile of rows of one expert by a tile of
// features. Few rows: bound by the bytes of the experts that are chosen; many: by multiply-adds.
#include "kernels/cuda/linear_grouped.h"

#include "base/check.h"
#include "core/types.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/ptx.h"

namespace llmb::cuda {

namespace {

constexpr int kTileK = 64;                 // elements: rows of 128 bytes in shared memory
constexpr int kChunksPerRow = kTileK / 8;  // of 16 bytes

template <int kM, int kN, int kWarpsAlongM, int kWarpsAlongN, int kNumStages>
struct Tiling {
  static constexpr int kTileM = kM, kTileN = kN, kWarpsM = kWarpsAlongM, kWarpsN = kWarpsAlongN, kStages = kNumStages;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kWarpRows = kM / kWarpsM, kWarpCols = kN / kWarpsN;
  static constexpr int kStageElements = (kM + kN) * kTileK;
  static constexpr size_t kSharedBytes = size_t{2} * kStages * kStageElements;
};
using FewRows = Tiling<16, 64, 1, 4, 6>;
using ManyRows = Tiling<64, 128, 2, 4, 4>;
constexpr int kScalarRows = 4, kScalarCols = 32;

// Chunks of a tile row change places by the row, so that the eight rows of an 8x8 matrix lie in different banks.
__device__ __forceinline__ int element_of(int row, int chunk) {
  return row * kTileK + ((chunk ^ (row & (kChunksPerRow - 1))) * 8);
}

// Columns [k, k + kTileK) of kRows rows, the i-th of them at row_of(i), negative where there is none; what lies outside
// is zero.
template <class T, int kRows, int kThreads, class RowOf>
__device__ __forceinline__ void load_tile(T* tile, const T* matrix, const RowOf& row_of, int64_t k, int64_t num_cols) {
#pragma unroll
  for (int i = threadIdx.x; i < kRows * kChunksPerRow; i += kThreads) {
    const int row = i / kChunksPerRow, chunk = i % kChunksPerRow;
    const int64_t from_row = row_of(row), column = k + chunk * 8;
    const bool is_inside = from_row >= 0 && column < num_cols;
    ptx::cp_async16(tile + element_of(row, chunk), is_inside ? matrix + from_row * num_cols + column : matrix,
                    is_inside);
  }
}

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::kThreads)
    linear_grouped_kernel(GroupedWeights weights, const T* x, const int32_t* x_rows, const RowTile* tiles, T* out) {
  constexpr int kRowTiles = Tile::kWarpRows / 16, kColTiles = Tile::kWarpCols / 8;
  static_assert(kColTiles % 2 == 0);
  const RowTile tile = tiles[blockIdx.x];
  if (tile.expert < 0) return;
  T* const shared = dynamic_shared<T>();
  const T* const weight = static_cast<const T*>(weights.weights[tile.expert]);
  const T* const bias = weights.biases == nullptr ? nullptr : static_cast<const T*>(weights.biases[tile.expert]);
  const int64_t in_features = weights.in_features, out_features = weights.out_features;
  const int64_t first_col = int64_t{blockIdx.y} * Tile::kTileN;
  const int num_steps = static_cast<int>((in_features + kTileK - 1) / kTileK);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp / Tile::kWarpsN * Tile::kWarpRows, warp_col = warp % Tile::kWarpsN * Tile::kWarpCols;
  const auto row_of = [&](int row) -> int64_t {
    if (row >= tile.num_rows) return -1;
    return x_rows == nullptr ? tile.first_row + row : x_rows[tile.first_row + row];
  };
  const auto feature_of = [&](int row) -> int64_t { return first_col + row < out_features ? first_col + row : -1; };

  const auto load_stage = [&](int step) {
    if (step < num_steps) {
      T* const x_tile = shared + step % Tile::kStages * Tile::kStageElements;
      const int64_t k = int64_t{step} * kTileK;
      load_tile<T, Tile::kTileN, Tile::kThreads>(x_tile + Tile::kTileM * kTileK, weight, feature_of, k, in_features);
      load_tile<T, Tile::kTileM, Tile::kThreads>(x_tile, x, row_of, k, in_features);
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
#pragma unroll
      for (int j = 0; j < kColTiles; j += 2) {
        uint32_t pair[4];
        ptx::ldmatrix_x4(pair, w_tile + element_of(warp_col + j * 8 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
        b[j][0] = pair[0], b[j][1] = pair[1];
        b[j + 1][0] = pair[2], b[j + 1][1] = pair[3];
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
      for (int e = 0; e < 4; ++e) {
        const int row = warp_row + i * 16 + e / 2 * 8 + lane / 4;
        const int64_t col = first_col + warp_col + j * 8 + lane % 4 * 2 + e % 2;
        if (row >= tile.num_rows || col >= out_features) continue;
        const float sum = sums[i][j][e];
        out[(tile.first_row + row) * out_features + col] =
            from_float<T>(bias == nullptr ? sum : sum + to_float(bias[col]));
      }
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
