// Bound by the bytes of the weight with few rows; beside them, by the instructions that make numbers of codes: four for
// two numbers.
#include "kernels/cuda/linear_int4.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/int4_tiles.h"
#include "kernels/cuda/ptx.h"

namespace llmb::cuda {

namespace {

using int4::kThreads;
using int4::Shape;
using int4::Sums;

constexpr int kMaxRows = 128;     // of a launch
constexpr int kMinUnits = 2;      // of a block
constexpr int kMaxTiles = 16384;  // one counter each

template <class T>
struct Args {
  const uint8_t* units;
  const T* x;
  const T* bias;  // or nullptr
  void* out;      // of float or T
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

// Leaves the sums of a part of a tile's units in memory. Whether the tile's other parts are there, too: then this
// block gets their sum, in the order of k.
template <class T, class S>
__device__ __forceinline__ bool combine(const Args<T>& args, int tile, bool is_first_part, Sums<T, S>* sums,
                                        int* is_last) {
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
             make_float4(value[0], value[1], value[2], value[3]));
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
          value[0] += more[i][j].x, value[1] += more[i][j].y, value[2] += more[i][j].z, value[3] += more[i][j].w;
        }
    }
  }
  return true;
}

template <class T, class S, class Out>
__device__ __forceinline__ void write(const Args<T>& args, int tile, const Sums<T, S>& sums, Out* out) {
  sums.for_each([&](int row, int in_tile, float sum) {
    const int64_t feature = int64_t{tile} * int4::kTileFeatures + in_tile;
    if (row >= args.rows || feature >= args.out_features) return;
    const float bias = args.bias == nullptr ? 0.0f : to_float(args.bias[feature]);
    out[row * args.out_features + feature] = from_float<Out>(sum + bias);
  });
}

template <class T, class S>
__global__ void __launch_bounds__(kThreads, 2) linear_int4_kernel(const __grid_constant__ Args<T> args) {
  __shared__ int is_last;
  ptx::launch_next_grid();
  const int begin = first_unit(args.num_units, static_cast<int>(blockIdx.x));
  const int end = first_unit(args.num_units, static_cast<int>(blockIdx.x) + 1);
  const auto row_of = [&](int row) { return row < args.rows ? args.x + row * args.in_features : nullptr; };
  int4::Loader<T, S> loader(args.units, args.x, row_of, args.in_features, args.num_steps, begin, end);
  int4::multiply_units(loader, args.num_stages, args.num_steps, begin, end,
                       [&](Sums<T, S>& sums, int tile, int first_step, int end_step) {
                         const bool is_whole = first_step == 0 && end_step == args.num_steps;
                         if (!is_whole && !combine(args, tile, first_step == 0, &sums, &is_last)) return;
                         if (args.is_float) write(args, tile, sums, static_cast<float*>(args.out));
                         else write(args, tile, sums, static_cast<T*>(args.out));
                       });
}

template <class T, class S>
void launch_rows(Args<T> args, const LinearInt4Options& options, cudaStream_t stream) {
  args.num_stages = int4::num_stages<S>(options.ring_bytes);
  const int64_t num_blocks =
      std::clamp<int64_t>(args.num_units / kMinUnits, 1, int64_t{options.num_sms} * options.blocks_per_sm);
  launch_ahead({dim3(static_cast<unsigned>(num_blocks)), dim3(kThreads),
                static_cast<size_t>(args.num_stages) * S::kStageBytes, stream},
               linear_int4_kernel<T, S>, args);
}

template <bool kHasZeros, class T>
void launch_any(const Args<T>& args, const LinearInt4Options& options, cudaStream_t stream) {
  if (args.rows <= 8) return launch_rows<T, Shape<8, kHasZeros>>(args, options, stream);
  if (args.rows <= 16) return launch_rows<T, Shape<16, kHasZeros>>(args, options, stream);
  if (args.rows <= 32) return launch_rows<T, Shape<32, kHasZeros>>(args, options, stream);
  if (args.rows <= 64) return launch_rows<T, Shape<64, kHasZeros>>(args, options, stream);
  launch_rows<T, Shape<128, kHasZeros>>(args, options, stream);
}

}  // namespace

LinearInt4::LinearInt4(const LinearInt4Options& options, cudaStream_t stream)
    : options_(options),
      partials_(int64_t{2} * options.num_sms * options.blocks_per_sm * int4::kTileFeatures * kMaxRows *
                int64_t{sizeof(float)}),
      counters_(kMaxTiles * int64_t{sizeof(int32_t)}) {
  check(cudaMemsetAsync(counters_.data(), 0, counters_.bytes(), stream), "cudaMemsetAsync");
}

bool LinearInt4::takes(int64_t out_features, int64_t in_features) {
  return in_features % 8 == 0 && int4::num_tiles(out_features) <= kMaxTiles;
}

template <class T, class Out>
void LinearInt4::run(const Int4View& weight, const T* x, int64_t rows, Out* out, cudaStream_t stream) {
  LLMB_CHECK(takes(weight.out_features, weight.in_features));
  if (weight.out_features == 0) return;
  const int64_t num_steps = int4::num_steps(weight.in_features);
  const int64_t num_units = int4::num_tiles(weight.out_features) * num_steps;
  LLMB_CHECK(num_units * options_.num_sms * options_.blocks_per_sm <= UINT32_MAX);
  for (int64_t first = 0; first < rows; first += kMaxRows) {
    Args<T> args{};
    args.units = weight.units;
    args.x = x + first * weight.in_features;
    args.bias = static_cast<const T*>(weight.bias);
    args.out = out + first * weight.out_features;
    args.is_float = std::is_same_v<Out, float>;
    args.rows = static_cast<int32_t>(std::min<int64_t>(rows - first, kMaxRows));
    args.num_units = static_cast<int32_t>(num_units);
    args.num_steps = static_cast<int32_t>(num_steps);
    args.out_features = weight.out_features;
    args.in_features = weight.in_features;
    args.partials = partials_.data<float4>();
    args.counters = counters_.data<int32_t>();
    if (weight.has_zeros) launch_any<true>(args, options_, stream);
    else launch_any<false>(args, options_, stream);
  }
}

template void LinearInt4::run(const Int4View&, const __nv_bfloat16*, int64_t, __nv_bfloat16*, cudaStream_t);
template void LinearInt4::run(const Int4View&, const __nv_bfloat16*, int64_t, float*, cudaStream_t);
template void LinearInt4::run(const Int4View&, const __half*, int64_t, __half*, cudaStream_t);
template void LinearInt4::run(const Int4View&, const __half*, int64_t, float*, cudaStream_t);

}  // namespace llmb::cuda
