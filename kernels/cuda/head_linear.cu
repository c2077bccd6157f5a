// A block is a tile of rows by a tile of features of one head. Few rows: bound by the bytes of the heads' matrices; many:
// by multiply-adds. join_latents is bound by bytes; a thread moves one element.
#include "kernels/cuda/head_linear.h"

#include <algorithm>
#include <type_traits>

#include "core/types.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/mma_tiles.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/scalar_tiles.h"

namespace llmb::cuda {

namespace {

using mma_tiles::Tiling;
using FewRows = Tiling<16, 64, 1, 4, 6>;
using ManyRows = Tiling<64, 128, 2, 4, 4>;

constexpr int kThreads = 256;
// A launch has the addresses of so many matrices among its arguments, so that a recorded step holds them.
constexpr int64_t kMaxHeads = 128;

struct Heads {
  const void* weights[kMaxHeads];
  int64_t out_features, in_features;
};

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::kThreads)
    head_linear_kernel(Heads heads, const T* x, HeadColumns x_columns, int64_t rows, T* out, HeadColumns out_columns) {
  ptx::follow_previous_grid();
  const int64_t head = blockIdx.z, out_features = heads.out_features;
  const int64_t first_row = int64_t{blockIdx.x} * Tile::kTileM, first_col = int64_t{blockIdx.y} * Tile::kTileN;
  const auto row_of = [&](int row) { return first_row + row < rows ? first_row + row : -1; };
  const auto feature_of = [&](int col) { return first_col + col < out_features ? first_col + col : -1; };
  const auto sums =
      mma_tiles::multiply<T, Tile>(x + x_columns.first + head * x_columns.head_stride, row_of,
                                   static_cast<const T*>(heads.weights[head]), feature_of, heads.in_features,
                                   x_columns.row_stride);
  T* const to = out + out_columns.first + head * out_columns.head_stride + first_col;
  sums.for_each([&](int row, int col, float sum) {
    if (first_row + row < rows && first_col + col < out_features)
      to[(first_row + row) * out_columns.row_stride + col] = from_float<T>(sum);
  });
}

template <class T>
__global__ void head_linear_scalar_kernel(Heads heads, const T* x, HeadColumns x_columns, int64_t rows, T* out,
                                          HeadColumns out_columns) {
  ptx::follow_previous_grid();
  const int64_t head = blockIdx.z, row = int64_t{blockIdx.x} * scalar_tiles::kRows + threadIdx.y;
  const int64_t first_col = int64_t{blockIdx.y} * scalar_tiles::kCols, col = first_col + threadIdx.x;
  const float sum =
      scalar_tiles::multiply(x + x_columns.first + head * x_columns.head_stride, row < rows ? row : -1,
                             static_cast<const T*>(heads.weights[head]), first_col, heads.out_features,
                             heads.in_features, x_columns.row_stride);
  if (row < rows && col < heads.out_features)
    out[row * out_columns.row_stride + out_columns.first + head * out_columns.head_stride + col] = from_float<T>(sum);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    join_latents_kernel(LatentRows s, const T* __restrict__ queries, const T* __restrict__ latents,
                        T* __restrict__ qkv) {
  ptx::follow_previous_grid();
  const int64_t row = blockIdx.x;
  const int32_t num_rotated = s.num_heads * s.rope_dim, key_dim = s.query_dim - s.rope_dim;
  const T* const from = queries + row * s.num_heads * s.query_dim;
  T* const to = qkv + row * (s.num_heads + 1) * s.head_dim;
  for (int32_t i = threadIdx.x; i < num_rotated + s.head_dim; i += kThreads) {
    if (i < num_rotated) {
      const int32_t head = i / s.rope_dim, channel = i - head * s.rope_dim;
      to[head * s.head_dim + channel] = from[head * s.query_dim + key_dim + channel];
    } else {
      to[int64_t{s.num_heads} * s.head_dim + i - num_rotated] = latents[row * s.head_dim + i - num_rotated];
    }
  }
}

// Whether all of a head's rows begin at multiples of 16 bytes.
template <class T>
bool can_copy(const T* base, const HeadColumns& columns) {
  return reinterpret_cast<uintptr_t>(base) % 16 == 0 && columns.row_stride % 8 == 0 && columns.first % 8 == 0 &&
         columns.head_stride % 8 == 0;
}

template <class Tile, class T, class Kernel>
void launch_tiles(const Kernel& kernel, const Heads& heads, int64_t num_heads, const T* x, const HeadColumns& x_columns,
                  int64_t rows, T* out, const HeadColumns& out_columns, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div(rows, Tile::kTileM)),
                  static_cast<unsigned>(ceil_div(heads.out_features, Tile::kTileN)), static_cast<unsigned>(num_heads));
  launch_ahead({grid, dim3(Tile::kThreads), Tile::kSharedBytes, stream}, kernel, heads, x, x_columns, rows, out,
               out_columns);
}

}  // namespace

template <class T>
void head_linear(const HeadMatrices& heads, const T* x, const HeadColumns& x_columns, int64_t rows, T* out,
                 const HeadColumns& out_columns, cudaStream_t stream) {
  if (rows == 0) return;
  const auto num_heads = static_cast<int64_t>(heads.weights.size());
  for (int64_t begin = 0; begin < num_heads; begin += kMaxHeads) {
    const int64_t count = std::min(kMaxHeads, num_heads - begin);
    Heads part{{}, heads.out_features, heads.in_features};
    std::copy_n(heads.weights.begin() + begin, count, part.weights);
    HeadColumns from = x_columns, to = out_columns;
    from.first += begin * from.head_stride, to.first += begin * to.head_stride;
    if constexpr (!std::is_same_v<T, float>) {
      if (heads.in_features % 8 == 0 && can_copy(x, from)) {
        if (rows > FewRows::kTileM)
          launch_tiles<ManyRows>(head_linear_kernel<T, ManyRows>, part, count, x, from, rows, out, to, stream);
        else launch_tiles<FewRows>(head_linear_kernel<T, FewRows>, part, count, x, from, rows, out, to, stream);
        continue;
      }
    }
    const dim3 grid(static_cast<unsigned>(ceil_div(rows, scalar_tiles::kRows)),
                    static_cast<unsigned>(ceil_div(heads.out_features, scalar_tiles::kCols)),
                    static_cast<unsigned>(count));
    launch_ahead({grid, dim3(scalar_tiles::kCols, scalar_tiles::kRows), 0, stream}, head_linear_scalar_kernel<T>, part,
                 x, from, rows, out, to);
  }
}

template <class T>
void join_latents(const LatentRows& shape, const T* queries, const T* latents, int64_t rows, T* qkv,
                  cudaStream_t stream) {
  if (rows == 0) return;
  launch_ahead({dim3(static_cast<unsigned>(rows)), dim3(kThreads), 0, stream}, join_latents_kernel<T>, shape, queries,
               latents, qkv);
}

#define LLMB_HEAD_LINEAR(T)                                                                                    \
  template void head_linear(const HeadMatrices&, const T*, const HeadColumns&, int64_t, T*, const HeadColumns&, \
                            cudaStream_t);                                                                     \
  template void join_latents(const LatentRows&, const T*, const T*, int64_t, T*, cudaStream_t);
LLMB_HEAD_LINEAR(float)
LLMB_HEAD_LINEAR(__nv_bfloat16)
LLMB_HEAD_LINEAR(__half)
#undef LLMB_HEAD_LINEAR

}  // namespace llmb::cuda
