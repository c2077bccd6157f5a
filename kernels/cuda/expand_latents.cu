// A block of the product is kExpandedBlock positions by a tile of one head's features: its keys' first, then its
// values'. Bound by multiply-adds. The matrices of keys, which attention over latents takes the other way round, are
// transposed first: some megabytes.
#include "kernels/cuda/expand_latents.h"

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/device.h"
#include "kernels/cuda/mma_tiles.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/scalar_tiles.h"

namespace llmb::cuda {

namespace {

using Tile = mma_tiles::Tiling<kExpandedBlock, 128, 2, 4, 3>;

constexpr int kThreads = 256;
constexpr int kSide = 32;  // of a transposed tile
// A launch has the addresses of so many matrices among its arguments.
constexpr int64_t kMaxHeads = 128;

struct Heads {
  const void* weights[kMaxHeads];
};

template <class T>
struct Expansion {
  ExpandedShape shape;
  const T* keys;  // [num_heads, key_dim, rank]
  Heads values;
  const T* latents;
  const BlockId* block_ids;
  const ExpandedBlock* blocks;
  T* out;
  int64_t first_head, num_heads;  // of the launch, and of out
  int64_t num_key_tiles;          // of features
};

// Elements from the cache's begin to a position's row.
template <class T>
__device__ int64_t row_at(const Expansion<T>& e, const ExpandedBlock& block, int position) {
  const ExpandedShape& s = e.shape;
  const int at = block.first_position + position, index = at / s.block_size;
  const int64_t id = e.block_ids[int64_t{block.table_start + index} * s.table_stride];
  return id * s.block_stride + int64_t{at - index * s.block_size} * (s.rope_dim + s.rank);
}

// Columns of a head's rows, which a block of threads makes.
template <class T>
struct Part {
  const T* weight;
  int64_t first_feature, num_features;
  T* out;  // column 0 of the head's rows

  // kFeatures: of a tile. The head is blockIdx.z, the tile blockIdx.y.
  __device__ Part(const Expansion<T>& e, int64_t features_of_tile) {
    const ExpandedShape& s = e.shape;
    const int64_t tile = blockIdx.y, head = blockIdx.z;
    const bool is_key = tile < e.num_key_tiles;
    weight = is_key ? e.keys + (e.first_head + head) * s.key_dim * s.rank : static_cast<const T*>(e.values.weights[head]);
    first_feature = (is_key ? tile : tile - e.num_key_tiles) * features_of_tile;
    num_features = is_key ? s.key_dim : s.value_dim;
    out = e.out + (int64_t{blockIdx.x} * e.num_heads + e.first_head + head) * kExpandedBlock * s.row_dim() +
          (is_key ? 0 : s.key_dim + s.rope_dim);
  }
};

// The rotated channels, by the blocks that make a head's first keys.
template <class T>
__device__ void copy_rotated(const Expansion<T>& e, const ExpandedBlock& block, T* rows, int thread, int num_threads) {
  const ExpandedShape& s = e.shape;
  for (int i = thread; i < block.num_positions * s.rope_dim; i += num_threads) {
    const int position = i / s.rope_dim, channel = i - position * s.rope_dim;
    rows[int64_t{position} * s.row_dim() + s.key_dim + channel] = e.latents[row_at(e, block, position) + channel];
  }
}

template <class T>
__global__ void __launch_bounds__(Tile::kThreads) expand_latents_kernel(Expansion<T> e) {
  ptx::follow_previous_grid();
  __shared__ int64_t row_starts[kExpandedBlock];
  const ExpandedBlock block = e.blocks[blockIdx.x];
  for (int i = static_cast<int>(threadIdx.x); i < kExpandedBlock; i += Tile::kThreads)
    row_starts[i] = i < block.num_positions ? row_at(e, block, i) : -1;
  __syncthreads();
  const ExpandedShape& s = e.shape;
  const Part<T> part(e, Tile::kTileN);
  // Rows are counted in elements here.
  const auto row_of = [&](int row) { return row_starts[row]; };
  const auto feature_of = [&](int col) {
    return part.first_feature + col < part.num_features ? part.first_feature + col : -1;
  };
  const auto sums = mma_tiles::multiply<T, Tile>(e.latents + s.rope_dim, row_of, part.weight, feature_of, s.rank, 1);
  const int row_dim = s.row_dim();
  sums.for_each([&](int row, int col, float sum) {
    if (row < block.num_positions && part.first_feature + col < part.num_features)
      part.out[int64_t{row} * row_dim + part.first_feature + col] = from_float<T>(sum);
  });
  if (blockIdx.y == 0) copy_rotated(e, block, part.out, static_cast<int>(threadIdx.x), Tile::kThreads);
}

template <class T>
__global__ void expand_latents_scalar_kernel(Expansion<T> e) {
  ptx::follow_previous_grid();
  const ExpandedBlock block = e.blocks[blockIdx.x];
  const ExpandedShape& s = e.shape;
  const Part<T> part(e, scalar_tiles::kCols);
  const int64_t feature = part.first_feature + threadIdx.x;
  for (int first = 0; first < block.num_positions; first += scalar_tiles::kRows) {
    const int row = first + static_cast<int>(threadIdx.y);
    const bool is_row = row < block.num_positions;
    const float sum = scalar_tiles::multiply(e.latents + s.rope_dim, is_row ? row_at(e, block, row) : -1, part.weight,
                                             part.first_feature, part.num_features, s.rank, 1);
    if (is_row && feature < part.num_features) part.out[int64_t{row} * s.row_dim() + feature] = from_float<T>(sum);
  }
  if (blockIdx.y == 0)
    copy_rotated(e, block, part.out, static_cast<int>(threadIdx.y * scalar_tiles::kCols + threadIdx.x),
                 scalar_tiles::kCols * scalar_tiles::kRows);
}

// out[c, r] = in[r, c] of each head.
template <class T>
__global__ void __launch_bounds__(kThreads)
    transpose_heads_kernel(Heads heads, int64_t num_rows, int64_t num_cols, T* out) {
  ptx::follow_previous_grid();
  __shared__ T tile[kSide][kSide + 2];
  const T* const in = static_cast<const T*>(heads.weights[blockIdx.z]);
  T* const to = out + int64_t{blockIdx.z} * num_rows * num_cols;
  const int64_t first_row = int64_t{blockIdx.x} * kSide, first_col = int64_t{blockIdx.y} * kSide;
  const int x = static_cast<int>(threadIdx.x) % kSide;
  for (int y = static_cast<int>(threadIdx.x) / kSide; y < kSide; y += kThreads / kSide)
    if (first_row + y < num_rows && first_col + x < num_cols) tile[y][x] = in[(first_row + y) * num_cols + first_col + x];
  __syncthreads();
  for (int y = static_cast<int>(threadIdx.x) / kSide; y < kSide; y += kThreads / kSide)
    if (first_col + y < num_cols && first_row + x < num_rows) to[(first_col + y) * num_rows + first_row + x] = tile[x][y];
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    take_rotated_kernel(ExpandedShape s, int32_t num_heads, const T* __restrict__ qkv, int64_t qkv_stride,
                        T* __restrict__ queries) {
  ptx::follow_previous_grid();
  const int64_t row = blockIdx.x, query_dim = s.key_dim + s.rope_dim;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < num_heads * s.rope_dim; i += kThreads) {
    const int32_t head = i / s.rope_dim, channel = i - head * s.rope_dim;
    queries[(row * num_heads + head) * query_dim + s.key_dim + channel] =
        qkv[row * qkv_stride + int64_t{head} * (s.rope_dim + s.rank) + channel];
  }
}

bool is_aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; }

}  // namespace

template <class T>
void expand_latents(const ExpandedShape& shape, std::span<const void* const> key_heads,
                    std::span<const void* const> value_heads, const T* latents, const BlockId* block_ids,
                    const ExpandedBlock* blocks, int64_t num_blocks, T* workspace, T* out, cudaStream_t stream) {
  if (num_blocks == 0) return;
  const ExpandedShape& s = shape;
  const auto num_heads = static_cast<int64_t>(key_heads.size());
  const bool has_tiles = !std::is_same_v<T, float> && s.rank % 8 == 0 && s.rope_dim % 8 == 0 && s.block_stride % 8 == 0 &&
                         is_aligned(latents) && is_aligned(workspace) && s.key_dim % 8 == 0;
  const int64_t cols = has_tiles ? Tile::kTileN : scalar_tiles::kCols;
  for (int64_t begin = 0; begin < num_heads; begin += kMaxHeads) {
    const int64_t count = std::min(kMaxHeads, num_heads - begin);
    Heads keys{}, values{};
    std::copy_n(key_heads.begin() + begin, count, keys.weights);
    std::copy_n(value_heads.begin() + begin, count, values.weights);
    const dim3 tiles(static_cast<unsigned>(ceil_div(s.rank, kSide)), static_cast<unsigned>(ceil_div(s.key_dim, kSide)),
                     static_cast<unsigned>(count));
    launch_ahead({tiles, dim3(kThreads), 0, stream}, transpose_heads_kernel<T>, keys, s.rank, s.key_dim,
                 workspace + begin * s.key_dim * s.rank);
    const int64_t num_key_tiles = ceil_div(s.key_dim, cols);
    const Expansion<T> expansion{s, workspace, values, latents, block_ids, blocks, out, begin, num_heads, num_key_tiles};
    const dim3 grid(static_cast<unsigned>(num_blocks), static_cast<unsigned>(num_key_tiles + ceil_div(s.value_dim, cols)),
                    static_cast<unsigned>(count));
    if constexpr (!std::is_same_v<T, float>) {
      if (has_tiles) {
        launch_ahead({grid, dim3(Tile::kThreads), Tile::kSharedBytes, stream}, expand_latents_kernel<T>, expansion);
        continue;
      }
    }
    launch_ahead({grid, dim3(scalar_tiles::kCols, scalar_tiles::kRows), 0, stream}, expand_latents_scalar_kernel<T>,
                 expansion);
  }
}

template <class T>
void take_rotated(const ExpandedShape& shape, int64_t num_heads, const T* qkv, int64_t qkv_stride, int64_t rows,
                  T* queries, cudaStream_t stream) {
  if (rows == 0) return;
  launch_ahead({dim3(static_cast<unsigned>(rows)), dim3(kThreads), 0, stream}, take_rotated_kernel<T>, shape,
               static_cast<int32_t>(num_heads), qkv, qkv_stride, queries);
}

#define LLMB_EXPAND_LATENTS(T)                                                                                       \
  template void expand_latents(const ExpandedShape&, std::span<const void* const>, std::span<const void* const>,     \
                               const T*, const BlockId*, const ExpandedBlock*, int64_t, T*, T*, cudaStream_t);       \
  template void take_rotated(const ExpandedShape&, int64_t, const T*, int64_t, int64_t, T*, cudaStream_t);
LLMB_EXPAND_LATENTS(float)
LLMB_EXPAND_LATENTS(__nv_bfloat16)
LLMB_EXPAND_LATENTS(__half)
#undef LLMB_EXPAND_LATENTS

}  // namespace llmb::cuda
