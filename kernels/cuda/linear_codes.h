// out = x · weightᵀ + bias of a weight of few bits and 16-bit activations, sums in fp32: the kernel of linear_int4,
// linear_fp8 and linear_sparse24. Device code and its launch.
//
// Units (code_tiles.h) are shared out evenly to the blocks of the grid, one behind the other; sums that several blocks
// have a part of are added in the order of k by the block that comes last. How units are shared out depends on the
// weight and the device alone, so that a row's bits do not depend on the rows beside it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "base/check.h"
#include "kernels/cuda/code_tiles.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/linear_codes_options.h"
#include "kernels/cuda/ptx.h"

namespace llmb::cuda {

namespace code_tiles {

template <class T, class Codes>
struct Args {
  typename Codes::Source weight;
  const T* x;
  const float* scales;  // of features, where Codes has them
  const T* bias;        // or nullptr
  void* out;            // of float or T
  bool is_float;
  int32_t rows, num_units, num_steps, num_stages;
  int64_t out_features, in_features;
  float4* partials;   // [2 · blocks, kRowTiles, kThreads]
  int32_t* counters;  // [tiles of features]  zero between calls
};

// The units of a block, and the block of a unit.
__device__ __forceinline__ int first_unit(int num_units, int block) {
  return static_cast<int>(static_cast<uint32_t>(num_units) * static_cast<uint32_t>(block) / gridDim.x);
}
__device__ __forceinline__ int block_of(int num_units, int unit) {
  return static_cast<int>(((static_cast<uint32_t>(unit) + 1) * gridDim.x - 1) / static_cast<uint32_t>(num_units));
}

// Sums on their way through memory as fp32; whole numbers keep their bits.
__device__ __forceinline__ float as_float(float sum) { return sum; }
__device__ __forceinline__ float as_float(int32_t sum) { return __int_as_float(sum); }
__device__ __forceinline__ void add(float& sum, float more) { sum += more; }
__device__ __forceinline__ void add(int32_t& sum, float more) { sum += __float_as_int(more); }

// Leaves the sums of a part of a tile's units in memory. Whether the tile's other parts are there, too: then this
// block gets their sum, in the order of k.
template <class T, class S>
__device__ __forceinline__ bool combine(const Args<T, typename S::Codes>& args, int tile, bool is_first_part,
                                        Sums<T, S>* sums, int* is_last) {
  const int first = block_of(args.num_units, tile * args.num_steps);
  const int last = block_of(args.num_units, (tile + 1) * args.num_steps - 1);
  const auto place = [&](int block, bool begins, int j) {
    return args.partials + ((2 * block + (begins ? 1 : 0)) * S::kRowTiles + j) * kThreads + threadIdx.x;
  };
#pragma unroll
  for (int j = 0; j < S::kRowTiles; ++j)
    if (sums->row(j) < args.rows) {
      const auto& value = sums->of(j);
      __stcg(place(static_cast<int>(blockIdx.x), is_first_part, j),
             make_float4(as_float(value[0]), as_float(value[1]), as_float(value[2]), as_float(value[3])));
    }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    *is_last = atomicAdd(args.counters + tile, 1) == last - first;
    if (*is_last) args.counters[tile] = 0;
  }
  __syncthreads();
  if (!*is_last) return false;
  __threadfence();
  sums->clear();
  constexpr int kTiles = S::kRowTiles < 8 ? S::kRowTiles : 8, kAtOnce = 8 / kTiles;  // tiles and parts under way
#pragma unroll
  for (int tiles = 0; tiles < S::kRowTiles; tiles += kTiles) {
#pragma unroll 1
    for (int from = first; from <= last; from += kAtOnce) {
      float4 more[kAtOnce][kTiles];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
        for (int j = 0; j < kTiles; ++j)
          more[i][j] = from + i <= last && sums->row(tiles + j) < args.rows
                           ? __ldcg(place(from + i, from + i == first, tiles + j))
                           : make_float4(0, 0, 0, 0);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          auto& value = sums->of(tiles + j);
          add(value[0], more[i][j].x), add(value[1], more[i][j].y);
          add(value[2], more[i][j].z), add(value[3], more[i][j].w);
        }
    }
  }
  return true;
}

template <class T, class S, class Out>
__device__ __forceinline__ void write(const Args<T, typename S::Codes>& args, int tile, const Sums<T, S>& sums,
                                      Out* out) {
  sums.for_each([&](int row, int in_tile, float sum) {
    const int64_t feature = int64_t{tile} * kTileFeatures + in_tile;
    if (row >= args.rows || feature >= args.out_features) return;
    if constexpr (S::Codes::kHasRowScales) sum = __fmul_rn(sum, args.scales[feature]);
    const float bias = args.bias == nullptr ? 0.0f : to_float(args.bias[feature]);
    out[row * args.out_features + feature] = from_float<Out>(sum + bias);
  });
}

// write(tile, its whole sums) by one block for each tile of features.
template <class T, class S, class Write>
__device__ __forceinline__ void multiply_tiles(const Args<T, typename S::Codes>& args, const Write& write) {
  __shared__ int is_last;
  ptx::launch_next_grid();
  const int begin = first_unit(args.num_units, static_cast<int>(blockIdx.x));
  const int end = first_unit(args.num_units, static_cast<int>(blockIdx.x) + 1);
  const auto row_of = [&](int row) { return row < args.rows ? args.x + row * args.in_features : nullptr; };
  Loader<T, S> loader(args.weight, args.x, row_of, args.in_features, args.num_steps, begin, end);
  multiply_units(loader, args.num_stages, args.num_steps, begin, end,
                 [&](Sums<T, S>& sums, int tile, int first_step, int end_step) {
                   const bool is_whole = first_step == 0 && end_step == args.num_steps;
                   if (is_whole || combine<T, S>(args, tile, first_step == 0, &sums, &is_last)) write(tile, sums);
                 });
}

template <class T, class S>
__global__ void __launch_bounds__(kThreads, 2)
    linear_codes_kernel(const __grid_constant__ Args<T, typename S::Codes> args) {
  multiply_tiles<T, S>(args, [&](int tile, const Sums<T, S>& sums) {
    if (args.is_float) write<T, S>(args, tile, sums, static_cast<float*>(args.out));
    else write<T, S>(args, tile, sums, static_cast<T*>(args.out));
  });
}

inline int64_t num_blocks(int64_t num_units, const LinearCodesOptions& options) {
  return std::clamp<int64_t>(num_units / kMinUnits, 1, int64_t{options.num_sms} * options.blocks_per_sm);
}

template <class T, class S>
void launch_rows(Args<T, typename S::Codes> args, const LinearCodesOptions& options, cudaStream_t stream) {
  args.num_stages = num_stages<S>(options.ring_bytes);
  launch_ahead({dim3(static_cast<unsigned>(num_blocks(args.num_units, options))), dim3(kThreads),
                static_cast<size_t>(args.num_stages) * S::kStageBytes, stream},
               linear_codes_kernel<T, S>, args);
}

template <class T, class Codes>
void launch_any(const Args<T, Codes>& args, const LinearCodesOptions& options, cudaStream_t stream) {
  if (args.rows <= 8) return launch_rows<T, Shape<8, Codes>>(args, options, stream);
  if (args.rows <= 16) return launch_rows<T, Shape<16, Codes>>(args, options, stream);
  if (args.rows <= 32) return launch_rows<T, Shape<32, Codes>>(args, options, stream);
  if (args.rows <= 64) return launch_rows<T, Shape<64, Codes>>(args, options, stream);
  launch_rows<T, Shape<128, Codes>>(args, options, stream);
}

// Units and the memory of sums, of `args` with its shape.
template <class T, class Codes>
void share_out(Args<T, Codes>* args, const Workspace& workspace, const LinearCodesOptions& options) {
  const int64_t steps = num_steps(args->in_features), units = num_tiles(args->out_features) * steps;
  LLMB_CHECK(units * options.num_sms * options.blocks_per_sm <= UINT32_MAX);
  args->num_units = static_cast<int32_t>(units);
  args->num_steps = static_cast<int32_t>(steps);
  args->partials = workspace.partials.data<float4>();
  args->counters = workspace.counters.data<int32_t>();
}

// The whole product, kMaxRows rows at a time. `args` has the weight, its scales and bias, and its shape.
template <class T, class Codes, class Out>
void run(Args<T, Codes> args, const T* x, int64_t rows, Out* out, const Workspace& workspace,
         const LinearCodesOptions& options, cudaStream_t stream) {
  if (args.out_features == 0) return;
  share_out(&args, workspace, options);
  args.is_float = std::is_same_v<Out, float>;
  for (int64_t first = 0; first < rows; first += kMaxRows) {
    args.x = x + first * args.in_features;
    args.out = out + first * args.out_features;
    args.rows = static_cast<int32_t>(std::min<int64_t>(rows - first, kMaxRows));
    launch_any(args, options, stream);
  }
}

}  // namespace code_tiles

}  // namespace llmb::cuda
