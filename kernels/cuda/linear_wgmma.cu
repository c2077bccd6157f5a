#include "kernels/cuda/linear_wgmma.h"

#include <algorithm>

#include "base/check.h"
#include "core/types.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/tensor_map.h"

namespace llmb::cuda {

namespace {

constexpr int kTileK = 64;            // 128 bytes: a row as wgmma reads it
constexpr int kGroupFeatures = 64;    // of a warpgroup
constexpr int kMinFeatures = 32;      // of a tile
constexpr int kWantedFeatures = 128;  // k is cut until a tile has so many; those of many rows all have
constexpr int kMaxFeatures = 256;
constexpr int kMaxRows = 128;           // of a tile
constexpr int kMaxSplitRows = 256;      // more make tiles enough without sharing out the parts of k
constexpr int kMinSteps = 4;            // of a part
constexpr int kMaxStages = 12;          // of weights and x on their way
constexpr int kRingBytes = 216 * 1024;  // at most
constexpr int kMaxCounters = 16384;     // one for each tile of features by rows and warpgroup

// Every sum over k is cut into so many parts of nearly as many steps of kTileK.
struct Parts {
  int32_t num_steps, num_parts;
};

// A tile of features is computed by one warpgroup for every 64 of them or part of 64; another warp loads.
struct Tile {
  int32_t features, num_groups, rows, num_stages;

  __host__ __device__ int weight_elements() const { return num_groups * kGroupFeatures * kTileK; }
  __host__ __device__ int stage_elements() const { return weight_elements() + rows * kTileK; }
  __host__ __device__ int stages_bytes() const { return 2 * num_stages * stage_elements(); }
  int num_threads() const { return 128 * num_groups + 32; }
};

Tile make_tile(int64_t features, int64_t rows) {
  Tile tile{static_cast<int32_t>(features), static_cast<int32_t>(ceil_div(features, kGroupFeatures)),
            static_cast<int32_t>(rows), 0};
  tile.num_stages = std::min(kMaxStages, kRingBytes / (2 * tile.stage_elements()));
  return tile;
}

template <class Out>
struct Args {
  const void* bias;  // [out_features] or nullptr
  Out* out;
  int64_t out_features;
  int32_t rows, num_blocks, num_tiles;  // tiles of features by blocks of rows
  Tile tile;
  Parts parts;
  float* partials;    // [blocks, tiles, parts, groups, 64 * rows of a tile]
  int32_t* counters;  // [blocks, tiles, groups]  zero between calls
};

struct State {
  uint64_t full[kMaxStages], empty[kMaxStages];
  int is_last[kMaxFeatures / kGroupFeatures];
};

#ifdef LLMB_HAS_SM90A

__device__ int32_t first_step(const Parts& parts, int part) {
  return static_cast<int32_t>(int64_t{parts.num_steps} * part / parts.num_parts);
}

struct Unit {
  int block, tile, step;
};

// A thread copies the units that unit_of(0), unit_of(1), … name. Weights do not depend on the kernel before this one.
template <class T, class UnitOf>
__device__ void load_units(const Tile& tile, int num_units, const CUtensorMap* weight_map, const CUtensorMap* x_map,
                           T* shared, State* state, const UnitOf& unit_of) {
  const uint32_t num_bytes = static_cast<uint32_t>(tile.features + tile.rows) * kTileK * sizeof(T);
  const auto load_weight = [&](int slot, const Unit& unit) {
    ptx::mbarrier_arrive_expect_tx(&state->full[slot], num_bytes);
    ptx::tma_load_2d(shared + slot * tile.stage_elements(), weight_map, &state->full[slot], unit.step * kTileK,
                     unit.tile * tile.features);
  };
  const auto load_x = [&](int slot, const Unit& unit) {
    ptx::tma_load_2d(shared + slot * tile.stage_elements() + tile.weight_elements(), x_map, &state->full[slot],
                     unit.step * kTileK, unit.block * tile.rows);
  };
  const int num_ahead = min(num_units, tile.num_stages);
  for (int i = 0; i < num_ahead; ++i) load_weight(i, unit_of(i));
  ptx::wait_for_previous_grid();
  for (int i = 0; i < num_ahead; ++i) load_x(i, unit_of(i));
  int slot = 0;
  uint32_t parity = 0;
  for (int i = num_ahead; i < num_units; ++i) {
    ptx::mbarrier_wait(&state->empty[slot], parity);
    const Unit unit = unit_of(i);
    load_weight(slot, unit);
    load_x(slot, unit);
    if (++slot == tile.num_stages) slot = 0, parity ^= 1;
  }
}

// One of the warpgroups that multiply: 64 features times kRows rows. Sums lie as wgmma leaves them.
template <class T, int kRows>
class Multiplier {
 public:
  static constexpr int kSums = kRows / 2;  // of a thread

  __device__ Multiplier(const Tile& tile, const T* shared, State* state)
      : tile_(tile), shared_(shared), state_(*state), group_(threadIdx.x / 128) {}

  // The next num_units units.
  __device__ __forceinline__ void multiply(int num_units, float (&sums)[kSums]) {
    int previous = -1;
    for (int i = 0; i < num_units; ++i) {
      ptx::mbarrier_wait(&state_.full[slot_], parity_);
      const T* const stage = shared_ + slot_ * tile_.stage_elements();
      const T* const weight = stage + group_ * kGroupFeatures * kTileK;
      const T* const x = stage + tile_.weight_elements();
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kTileK; k += 16)
        ptx::wgmma<T, kRows>(sums, ptx::wgmma_descriptor(weight + k, 0, 1024), ptx::wgmma_descriptor(x + k, 0, 1024),
                             i > 0 || k > 0);
      ptx::wgmma_commit();
      if (previous >= 0) {
        ptx::wgmma_wait<1>();
        release(previous);
      }
      previous = slot_;
      if (++slot_ == tile_.num_stages) slot_ = 0, parity_ ^= 1;
    }
    ptx::wgmma_wait<0>();
    release(previous);
  }

  // Leaves the sums of a part of k in memory. Whether the tile's other parts are there, too: then this thread gets
  // their sum, in the order of k.
  template <class Out>
  __device__ __forceinline__ bool combine(const Args<Out>& args, int block, int tile, int part,
                                          float (&sums)[kSums]) const {
    const int num_parts = args.parts.num_parts;
    if (num_parts == 1) return true;
    const int64_t index = int64_t{block} * args.num_tiles + tile;
    const int num_groups = tile_.num_groups, stride = num_groups * (kGroupFeatures * kRows / 4);  // of a part
    float4* const partials = reinterpret_cast<float4*>(args.partials) + index * num_parts * stride +
                             group_ * (kGroupFeatures * kRows / 4) + thread();
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i)
      __stcg(partials + part * stride + i * 128,
             make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]));
    __threadfence();
    ptx::bar_sync(1 + group_, 128);
    if (thread() == 0) {
      int32_t* const counter = args.counters + index * num_groups + group_;
      state_.is_last[group_] = atomicAdd(counter, 1) == num_parts - 1;
      if (state_.is_last[group_]) *counter = 0;
    }
    ptx::bar_sync(1 + group_, 128);
    if (!state_.is_last[group_]) return false;
    __threadfence();
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] = 0;
#pragma unroll(kRows < kMaxRows ? 2 : 1)
    for (int p = 0; p < num_parts; ++p) {
#pragma unroll
      for (int i = 0; i < kSums / 4; ++i) {
        const float4 more = __ldcg(partials + p * stride + i * 128);
        sums[4 * i] += more.x, sums[4 * i + 1] += more.y, sums[4 * i + 2] += more.z, sums[4 * i + 3] += more.w;
      }
    }
    return true;
  }

  template <class Out>
  __device__ __forceinline__ void write(const Args<Out>& args, int block, int tile, const float (&sums)[kSums]) const {
    const int lane = thread() % 32, warp = thread() / 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int in_tile = group_ * kGroupFeatures + warp * 16 + lane / 4 + half * 8;
      const int64_t feature = int64_t{tile} * tile_.features + in_tile;
      if (in_tile >= tile_.features || feature >= args.out_features) continue;
      const float bias = args.bias == nullptr ? 0.0f : to_float(static_cast<const T*>(args.bias)[feature]);
#pragma unroll
      for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int row = block * kRows + j * 8 + lane % 4 * 2 + c;
          if (row < args.rows)
            args.out[row * args.out_features + feature] = from_float<Out>(sums[4 * j + 2 * half + c] + bias);
        }
      }
    }
  }

 private:
  __device__ int thread() const { return static_cast<int>(threadIdx.x % 128); }
  // One arrival for each warp.
  __device__ void release(int slot) const {
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&state_.empty[slot]);
  }

  const Tile& tile_;
  const T* const shared_;
  State& state_;
  const int group_;
  int slot_ = 0;
  uint32_t parity_ = 0;
};

__device__ __forceinline__ bool is_loader(const Tile& tile) {
  return static_cast<int>(threadIdx.x) >= 128 * tile.num_groups;
}

__device__ State* begin_kernel(const Tile& tile, const CUtensorMap* weight_map, const CUtensorMap* x_map) {
  auto* const state = reinterpret_cast<State*>(dynamic_shared<char>() + tile.stages_bytes());
  if (static_cast<int>(threadIdx.x) == 128 * tile.num_groups) {
    ptx::tma_prefetch(weight_map);
    ptx::tma_prefetch(x_map);
    for (int i = 0; i < tile.num_stages; ++i) {
      ptx::mbarrier_init(&state->full[i], 1);
      ptx::mbarrier_init(&state->empty[i], static_cast<uint32_t>(4 * tile.num_groups));
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  ptx::launch_next_grid();
  return state;
}

#endif  // LLMB_HAS_SM90A

// Few rows: each CTA computes one part of a tile.
template <class T, class Out, int kRows>
__global__ void __launch_bounds__(2 * kMaxFeatures + 32, 1)
    linear_wgmma_parts_kernel(const __grid_constant__ Args<Out> args, const __grid_constant__ CUtensorMap weight_map,
                              const __grid_constant__ CUtensorMap x_map) {
#ifdef LLMB_HAS_SM90A
  State* const state = begin_kernel(args.tile, &weight_map, &x_map);
  T* const shared = dynamic_shared<T>();
  const int part = static_cast<int>(blockIdx.x), tile = static_cast<int>(blockIdx.y);
  const int block = static_cast<int>(blockIdx.z);
  const int begin = first_step(args.parts, part), num_steps = first_step(args.parts, part + 1) - begin;
  if (is_loader(args.tile)) {
    if (threadIdx.x % 32 != 0) return;
    return load_units(args.tile, num_steps, &weight_map, &x_map, shared, state, [&](int i) {
      return Unit{block, tile, begin + i};
    });
  }
  ptx::wait_for_previous_grid();
  Multiplier<T, kRows> multiplier(args.tile, shared, state);
  float sums[kRows / 2];
  multiplier.multiply(num_steps, sums);
  if (multiplier.combine(args, block, tile, part, sums)) multiplier.write(args, block, tile, sums);
#endif
}

// Many rows: each CTA computes tiles of features by rows, their parts of k one after the other.
template <class T, class Out>
__global__ void __launch_bounds__(2 * kWantedFeatures + 32, 1)
    linear_wgmma_tiles_kernel(const __grid_constant__ Args<Out> args, const __grid_constant__ CUtensorMap weight_map,
                              const __grid_constant__ CUtensorMap x_map) {
#ifdef LLMB_HAS_SM90A
  State* const state = begin_kernel(args.tile, &weight_map, &x_map);
  T* const shared = dynamic_shared<T>();
  const Parts& parts = args.parts;
  const int num_tasks = args.num_tiles * args.num_blocks, first = static_cast<int>(blockIdx.x);
  const int num_own = (num_tasks - first + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
  // Neighbours in time share tiles of weights and blocks of rows.
  const auto task = [&](int i) {
    constexpr int kGroup = 8;
    const int index = first + i * static_cast<int>(gridDim.x), group = index / (kGroup * args.num_blocks);
    const int width = min(kGroup, args.num_tiles - group * kGroup), at = index - group * kGroup * args.num_blocks;
    return Unit{at / width, group * kGroup + at % width, 0};
  };
  if (is_loader(args.tile)) {
    if (threadIdx.x % 32 != 0) return;
    return load_units(args.tile, num_own * parts.num_steps, &weight_map, &x_map, shared, state, [&](int i) {
      Unit unit = task(i / parts.num_steps);
      unit.step = i % parts.num_steps;
      return unit;
    });
  }
  ptx::wait_for_previous_grid();
  Multiplier<T, kMaxRows> multiplier(args.tile, shared, state);
  float sums[kMaxRows / 2], whole[kMaxRows / 2];
  for (int i = 0; i < num_own; ++i) {
    const Unit t = task(i);
#pragma unroll
    for (int s = 0; s < kMaxRows / 2; ++s) whole[s] = 0;
    for (int part = 0; part < parts.num_parts; ++part) {
      multiplier.multiply(first_step(parts, part + 1) - first_step(parts, part), sums);
#pragma unroll
      for (int s = 0; s < kMaxRows / 2; ++s) whole[s] += sums[s];
    }
    multiplier.write(args, t.block, t.tile, whole);
  }
#endif
}

// How a weight is divided for few rows. Neither depends on how many there are.
struct Division {
  int64_t features;   // of a tile
  int64_t num_parts;  // of a sum over k
};

// One tile for each multiprocessor, or a few: each reads memory at a rate of its own, which only all together make that
// of the device. As few parts as let a tile be large enough, since every tile reads all of x.
Division divide(int64_t out_features, int64_t num_steps, int64_t num_sms) {
  const auto features = [&](int64_t num_ctas) { return ceil_div(ceil_div(out_features, num_ctas), 8) * 8; };
  int64_t num_parts = 1;
  while (features(num_sms / num_parts) < kWantedFeatures && num_parts < num_sms &&
         num_steps / (num_parts + 1) >= kMinSteps)
    ++num_parts;
  int64_t num_rounds = 1;
  while (features(num_sms / num_parts * num_rounds) > kMaxFeatures) ++num_rounds;
  return {std::max<int64_t>(features(num_sms / num_parts * num_rounds), kMinFeatures), num_parts};
}

template <class T, class Out, int kRows>
void launch_parts(const Args<Out>& args, const CUtensorMap& weight_map, const CUtensorMap& x_map, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(args.parts.num_parts), static_cast<unsigned>(args.num_tiles),
                  static_cast<unsigned>(args.num_blocks));
  const dim3 block(static_cast<unsigned>(args.tile.num_threads()));
  launch_ahead({grid, block, args.tile.stages_bytes() + sizeof(State), stream},
               linear_wgmma_parts_kernel<T, Out, kRows>, args, weight_map, x_map);
}

}  // namespace

LinearWgmma::LinearWgmma(int32_t num_sms, cudaStream_t stream)
    : num_sms_(num_sms),
      partials_(int64_t{kMaxSplitRows} * kMaxFeatures * num_sms * int64_t{sizeof(float)}),
      counters_(kMaxCounters * int64_t{sizeof(int32_t)}) {
  check(cudaMemsetAsync(counters_.data(), 0, counters_.bytes(), stream), "cudaMemsetAsync");
}

bool LinearWgmma::takes(const LinearView& weight) {
  // Tiles are at least 32 features high, of one warpgroup; grids at most 65,535 of them.
  constexpr int64_t kMostTiles = kMaxCounters / (kMaxSplitRows / kMaxRows);
  return weight.in_features % 8 == 0 && ceil_div(weight.out_features, kMinFeatures) <= kMostTiles;
}

template <class T, class Out>
void LinearWgmma::run(const LinearView& weight, const T* x, int64_t rows, Out* out, cudaStream_t stream) {
  if (rows == 0 || weight.out_features == 0) return;
  LLMB_CHECK(takes(weight) && rows <= INT32_MAX / 2);
  const int64_t num_steps = ceil_div(weight.in_features, kTileK);
  const Division division = divide(weight.out_features, num_steps, num_sms_);
  const bool is_split = rows <= kMaxSplitRows;
  const int64_t tile_rows = rows <= 16 ? 16 : rows <= 32 ? 32 : rows <= 64 ? 64 : kMaxRows;
  const Tile tile = make_tile(is_split ? division.features : kWantedFeatures, tile_rows);
  const Args<Out> args{weight.bias,
                       out,
                       weight.out_features,
                       static_cast<int32_t>(rows),
                       static_cast<int32_t>(ceil_div(rows, tile_rows)),
                       static_cast<int32_t>(ceil_div(weight.out_features, tile.features)),
                       tile,
                       {static_cast<int32_t>(num_steps), static_cast<int32_t>(division.num_parts)},
                       partials_.data<float>(),
                       counters_.data<int32_t>()};
  const auto map_of = [&](const void* matrix, int64_t num_rows, int64_t box_rows) {
    return make_tensor_map(static_cast<const T*>(matrix),
                           {{static_cast<uint64_t>(weight.in_features), static_cast<uint64_t>(num_rows)},
                            {static_cast<uint64_t>(weight.in_features) * sizeof(T)},
                            {kTileK, static_cast<uint32_t>(box_rows)}});
  };
  const CUtensorMap weight_map = map_of(weight.weight, weight.out_features, tile.features);
  const CUtensorMap x_map = map_of(x, rows, tile_rows);
  if (!is_split) {
    const int64_t num_tasks = int64_t{args.num_tiles} * args.num_blocks;
    launch_ahead({dim3(static_cast<unsigned>(std::min<int64_t>(num_tasks, num_sms_))),
                  dim3(static_cast<unsigned>(tile.num_threads())), tile.stages_bytes() + sizeof(State), stream},
                 linear_wgmma_tiles_kernel<T, Out>, args, weight_map, x_map);
  } else if (tile_rows == 16) {
    launch_parts<T, Out, 16>(args, weight_map, x_map, stream);
  } else if (tile_rows == 32) {
    launch_parts<T, Out, 32>(args, weight_map, x_map, stream);
  } else if (tile_rows == 64) {
    launch_parts<T, Out, 64>(args, weight_map, x_map, stream);
  } else {
    launch_parts<T, Out, kMaxRows>(args, weight_map, x_map, stream);
  }
}

template void LinearWgmma::run(const LinearView&, const __nv_bfloat16*, int64_t, __nv_bfloat16*, cudaStream_t);
template void LinearWgmma::run(const LinearView&, const __nv_bfloat16*, int64_t, float*, cudaStream_t);
template void LinearWgmma::run(const LinearView&, const __half*, int64_t, __half*, cudaStream_t);
template void LinearWgmma::run(const LinearView&, const __half*, int64_t, float*, cudaStream_t);

}  // namespace llmb::cuda
