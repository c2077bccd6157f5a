// How a block of linear_wgmma8 shares out its work and its shared memory, and the warp that brings tiles of weights and
// of x there by tensor copies. The warpgroups that multiply: wgmma8_tiles.h. Device code only.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/types.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/ptx.h"

namespace llmb::cuda::wgmma8 {

constexpr int kStepK = 128;         // bytes: a row as wgmma reads it
constexpr int kGroupFeatures = 64;  // of a warpgroup
constexpr int kMaxGroups = 4;
constexpr int kMaxStages = 12;  // of weights and x on their way
// Outputs of 16 bits go by way of shared memory, so that a row's 128 bytes are written together.
constexpr int kStagedRows = 32, kStagedStride = 2 * kGroupFeatures + 16;

template <class Code>
constexpr bool kIsInt8 = std::is_same_v<Code, int8_t>;
template <class Code>
using SumOf = std::conditional_t<kIsInt8<Code>, int32_t, float>;

// So that sums stay in registers, of which the loading warpgroup leaves the others its own: those of e4m3 are there
// three times.
template <class Code>
constexpr int max_groups(int rows) {
  if (kIsInt8<Code>) return rows == 256 ? 2 : rows == 128 ? 3 : kMaxGroups;
  return rows > 32 ? 2 : kMaxGroups;
}

constexpr int multiplier_registers(int num_groups) { return num_groups == 2 ? 240 : num_groups == 3 ? 160 : 112; }
constexpr int kLoaderRegisters = 24;

struct Tile {
  int32_t features, rows, num_groups, num_stages;

  __host__ __device__ int weight_bytes() const { return num_groups * kGroupFeatures * kStepK; }
  __host__ __device__ int stage_bytes() const { return weight_bytes() + rows * kStepK; }
  // Behind the stages: of each warpgroup rows on their way out, and the scales of x.
  __host__ __device__ int staged_at(int group) const {
    return num_stages * stage_bytes() + group * kStagedRows * kStagedStride;
  }
  __host__ __device__ int scales_at(int group) const { return staged_at(num_groups) + group * rows * 4; }
  __host__ __device__ int state_at() const { return scales_at(num_groups); }
  int num_threads() const { return 128 * (num_groups + 1); }
};

struct State {
  uint64_t full[kMaxStages], empty[kMaxStages];
  int is_last[kMaxGroups];
};

constexpr int kMaxShared = 227 * 1024;  // of a block

template <class Out>
struct Args {
  const float* scales;    // [out_features]
  const float* x_scales;  // [rows]
  const void* bias;       // [out_features] of bias_dtype, or nullptr
  Out* out;
  int64_t out_features;
  int32_t rows, num_blocks, num_tiles, num_steps, num_parts;
  Tile tile;
  DType bias_dtype;
  bool is_split, has_packs;  // has_packs: rows of out are in 16-byte pieces
  uint4* partials;           // [blocks, tiles, parts, groups, 64 * rows of a tile / 4]
  int32_t* counters;         // [blocks, tiles, groups]  zero between calls
};

#ifdef LLMB_HAS_SM90A

// A tile of features by a block of rows, over parts [part, end_part) of k. Neighbours in time share tiles and blocks.
struct Task {
  int tile, block, part, end_part;

  template <class Out>
  __device__ Task(const Args<Out>& args, int index) {
    constexpr int kNeighbours = 8;  // tiles
    const int num_shares = args.is_split ? args.num_parts : 1, at = index / num_shares;
    const int group = at / (kNeighbours * args.num_blocks);
    const int width = min(kNeighbours, args.num_tiles - group * kNeighbours);
    const int in_group = at - group * kNeighbours * args.num_blocks;
    tile = group * kNeighbours + in_group % width, block = in_group / width;
    part = args.is_split ? index % num_shares : 0, end_part = args.is_split ? part + 1 : args.num_parts;
  }
};

template <class Out>
__device__ __forceinline__ int num_tasks(const Args<Out>& args) {
  return args.num_tiles * args.num_blocks * (args.is_split ? args.num_parts : 1);
}
template <class Out>
__device__ __forceinline__ int first_step(const Args<Out>& args, int part) {
  return static_cast<int>(int64_t{args.num_steps} * part / args.num_parts);
}

// The steps of k of a block's tasks, one after the other.
template <class Out>
class Steps {
 public:
  __device__ explicit Steps(const Args<Out>& args) : args_(args), index_(static_cast<int>(blockIdx.x)) { begin_task(); }
  __device__ bool is_end() const { return index_ >= num_tasks(args_); }
  __device__ void advance() {
    if (++step_ < end_) return;
    index_ += static_cast<int>(gridDim.x);
    begin_task();
  }
  __device__ int k() const { return step_ * kStepK; }
  __device__ int feature() const { return tile_ * args_.tile.features; }
  __device__ int row() const { return block_ * args_.tile.rows; }

 private:
  __device__ void begin_task() {
    if (is_end()) return;
    const Task task(args_, index_);
    tile_ = task.tile, block_ = task.block;
    step_ = first_step(args_, task.part), end_ = first_step(args_, task.end_part);
  }

  const Args<Out>& args_;
  int index_, tile_ = 0, block_ = 0, step_ = 0, end_ = 0;
};

// By one thread. Weights do not depend on the kernel before this one.
template <class Out>
__device__ void load(const Args<Out>& args, const CUtensorMap* weight_map, const CUtensorMap* x_map, State* state) {
  const Tile& tile = args.tile;
  const auto load_weight = [&](int slot, const Steps<Out>& at) {
    ptx::mbarrier_arrive_expect_tx(&state->full[slot], static_cast<uint32_t>(tile.features + tile.rows) * kStepK);
    ptx::tma_load_2d(dynamic_shared<char>() + slot * tile.stage_bytes(), weight_map, &state->full[slot], at.k(),
                     at.feature());
  };
  const auto load_x = [&](int slot, const Steps<Out>& at) {
    ptx::tma_load_2d(dynamic_shared<char>() + slot * tile.stage_bytes() + tile.weight_bytes(), x_map,
                     &state->full[slot], at.k(), at.row());
  };
  Steps<Out> weights(args), rows(args);
  for (int slot = 0; slot < tile.num_stages && !weights.is_end(); ++slot, weights.advance()) load_weight(slot, weights);
  ptx::wait_for_previous_grid();
  for (int slot = 0; slot < tile.num_stages && !rows.is_end(); ++slot, rows.advance()) load_x(slot, rows);
  int slot = 0;
  uint32_t parity = 0;
  for (; !rows.is_end(); rows.advance()) {
    ptx::mbarrier_wait(&state->empty[slot], parity);
    load_weight(slot, rows);
    load_x(slot, rows);
    if (++slot == tile.num_stages) slot = 0, parity ^= 1;
  }
}

#endif  // LLMB_HAS_SM90A

}  // namespace llmb::cuda::wgmma8
