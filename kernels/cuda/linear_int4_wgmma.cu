// Bound by the bytes of the weight up to about 64 rows, then by those of x, of which every tile of 128 features reads
// all, and by multiply-adds. Two warpgroups take 64 features each of the units of a block; another warp loads. A thread
// reads 16 bytes of a unit and makes four fragments of wgmma's first operand of them; beside that the tensor cores work
// for the other warpgroups of the multiprocessor (ptxas lets no product run while operands of the next one are made).
#include "kernels/cuda/linear_int4_wgmma.h"

#include <algorithm>
#include <type_traits>

#include "base/check.h"
#include "core/types.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/int4_fragments.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/tensor_map.h"

namespace llmb::cuda {

namespace {

using code_tiles::kMaxRows;
using int4::kUnitK;
using int4::Meaning;

constexpr int kGroupFeatures = 64;  // of a warpgroup
constexpr int kGroups = int4::kTileFeatures / kGroupFeatures;
constexpr int kMultipliers = 128 * kGroups, kThreads = kMultipliers + 32;
constexpr int kMaxStages = 16;          // of units and x on their way
constexpr int kRingBytes = 208 * 1024;  // of the blocks of a multiprocessor, at most
constexpr int kPieceBytes = 256;        // a unit is rows of so many to a tensor copy

// kRows rows of x times the 128 features of a unit.
template <Meaning kMeaningOfCodes, int kNumRows>
struct Shape {
  static constexpr Meaning kMeaning = kMeaningOfCodes;
  static constexpr int kRows = kNumRows;
  static constexpr int kUnitBytes = int4::unit_bytes(kMeaning), kXBytes = kRows * kUnitK * 2;
  static constexpr int kBlocksPerSm = kRows < kMaxRows ? 2 : 1;  // that there are registers for
  static constexpr int kStages = std::min(kMaxStages, kRingBytes / kBlocksPerSm / (kUnitBytes + kXBytes));
  static_assert(kUnitBytes % kPieceBytes == 0 && kXBytes % 1024 == 0);
};

// A task is a tile of features by a block of rows. The grid's columns share out the units of all tasks of a launch; its
// rows are blocks of rows whose units are shared out each in the same way.
struct Args {
  const void* bias;  // [out_features] or nullptr
  void* out;         // of float or T
  bool is_float;
  int32_t rows, row_blocks, num_tasks, num_steps;
  int64_t out_features;
  float4* partials;   // [blocks, 2, kGroups, kRows / 8, 128]
  int32_t* counters;  // [rows of the grid, tasks, kGroups]  zero between calls
};

template <class S>
struct Stages {
  uint64_t full[S::kStages], empty[S::kStages];
  int is_last[kGroups];
};
template <class S>
constexpr int shared_bytes() {
  return S::kStages * (S::kXBytes + S::kUnitBytes) + static_cast<int>(sizeof(Stages<S>));
}

#ifdef LLMB_HAS_SM90A

// The units of a block, and the block of a unit.
__device__ __forceinline__ int first_unit(int num_units, int block) {
  return static_cast<int>(static_cast<uint32_t>(num_units) * static_cast<uint32_t>(block) / gridDim.x);
}
__device__ __forceinline__ int block_of(int num_units, int unit) {
  return static_cast<int>(((static_cast<uint32_t>(unit) + 1) * gridDim.x - 1) / static_cast<uint32_t>(num_units));
}

// A unit of a task.
struct Place {
  int task, step;

  __device__ void advance(int num_steps) {
    if (++step == num_steps) ++task, step = 0;
  }
};

template <class T, class S>
struct Ring {
  uint8_t* const begin = dynamic_shared<uint8_t>();

  __device__ T* x(int slot) const { return reinterpret_cast<T*>(begin + slot * S::kXBytes); }
  __device__ uint8_t* unit(int slot) const { return begin + S::kStages * S::kXBytes + slot * S::kUnitBytes; }
  __device__ Stages<S>& stages() const {
    return *reinterpret_cast<Stages<S>*>(begin + S::kStages * (S::kXBytes + S::kUnitBytes));
  }
};

// By one thread. Weights do not depend on the kernel before this one.
template <class T, class S>
__device__ void load_units(const Args& args, const CUtensorMap* unit_map, const CUtensorMap* x_map, Place place,
                           int num_units) {
  const Ring<T, S> ring;
  Stages<S>& stages = ring.stages();
  const auto load_weight = [&](int slot, const Place& at) {
    ptx::mbarrier_arrive_expect_tx(&stages.full[slot], S::kUnitBytes + S::kXBytes);
    ptx::tma_load_2d(ring.unit(slot), unit_map, &stages.full[slot], 0,
                     (at.task / args.row_blocks * args.num_steps + at.step) * (S::kUnitBytes / kPieceBytes));
  };
  const auto load_x = [&](int slot, const Place& at) {
    ptx::tma_load_2d(ring.x(slot), x_map, &stages.full[slot], at.step * kUnitK,
                     (static_cast<int>(blockIdx.y) + at.task % args.row_blocks) * S::kRows);
  };
  const int num_ahead = min(num_units, S::kStages);
  Place at = place;
  for (int i = 0; i < num_ahead; ++i, at.advance(args.num_steps)) load_weight(i, at);
  ptx::wait_for_previous_grid();
  for (int i = 0; i < num_ahead; ++i, place.advance(args.num_steps)) load_x(i, place);
  int slot = 0;
  uint32_t parity = 0;
  for (int i = num_ahead; i < num_units; ++i, place.advance(args.num_steps)) {
    ptx::mbarrier_wait(&stages.empty[slot], parity);
    load_weight(slot, place);
    load_x(slot, place);
    if (++slot == S::kStages) slot = 0, parity ^= 1;
  }
}

// One of the warpgroups that multiply. Sums lie as wgmma leaves them.
template <class T, class S>
class Multiplier {
 public:
  static constexpr int kSums = S::kRows / 2;  // of a thread

  __device__ __forceinline__ explicit Multiplier(const Args& args)
      : args_(args),
        stages_(ring_.stages()),
        codes_(int4::code_place<S::kMeaning>(static_cast<int>(threadIdx.x) / 32)),
        scales_(int4::scale_place<S::kMeaning>(static_cast<int>(threadIdx.x) / 32)) {}

  // The next num_units units.
  __device__ __forceinline__ void multiply(int num_units, float (&sums)[kSums]) {
    for (int i = 0; i < num_units; ++i) {
      ptx::mbarrier_wait(&stages_.full[slot_], parity_);
      const uint8_t* const unit = ring_.unit(slot_);
      uint32_t fragments[kUnitK / 16][4];
      int4::for_each_fragment<T, S::kMeaning>(unit + codes_, unit + scales_, [&](int k, const uint32_t(&fragment)[4]) {
#pragma unroll
        for (int j = 0; j < 4; ++j) fragments[k][j] = fragment[j];
      });
      // All of them are there before the first product.
#pragma unroll
      for (auto& fragment : fragments)
#pragma unroll
        for (uint32_t& numbers : fragment) ptx::keep(numbers);
      const T* const x = ring_.x(slot_);
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kUnitK / 16; ++k)
        ptx::wgmma<T, S::kRows>(sums, fragments[k], ptx::wgmma_descriptor(x + k * 16, 0, 1024), i > 0 || k > 0);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&stages_.empty[slot_]);  // one arrival for each warp
      if (++slot_ == S::kStages) slot_ = 0, parity_ ^= 1;
    }
  }

  // Leaves the sums of a part of a task's units in memory. Whether its other parts are there, too: then this thread
  // gets their sum, in the order of k.
  __device__ __forceinline__ bool combine(int task, bool is_first_part, float (&sums)[kSums]) const {
    const int num_units = args_.num_tasks * args_.num_steps;
    const int first = block_of(num_units, task * args_.num_steps);
    const int last = block_of(num_units, (task + 1) * args_.num_steps - 1);
    const int num_columns = min(S::kRows, args_.rows - row_block(task) * S::kRows);  // that there are
    const auto place = [&](int block, bool begins, int j) {
      const int part = 2 * (static_cast<int>(blockIdx.y * gridDim.x) + block) + (begins ? 1 : 0);
      return args_.partials + ((part * kGroups + group()) * (S::kRows / 8) + j) * 128 + thread();
    };
#pragma unroll
    for (int j = 0; j < S::kRows / 8; ++j)
      if (j * 8 < num_columns)
        __stcg(place(static_cast<int>(blockIdx.x), is_first_part, j),
               make_float4(sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]));
    __threadfence();
    ptx::bar_sync(1 + group(), 128);
    if (thread() == 0) {
      int32_t* const counter =
          args_.counters + (static_cast<int>(blockIdx.y) * args_.num_tasks + task) * kGroups + group();
      stages_.is_last[group()] = atomicAdd(counter, 1) == last - first;
      if (stages_.is_last[group()]) *counter = 0;
    }
    ptx::bar_sync(1 + group(), 128);
    if (!stages_.is_last[group()]) return false;
    __threadfence();
#pragma unroll
    for (float& sum : sums) sum = 0;
    constexpr int kTiles = S::kRows / 8 < 4 ? S::kRows / 8 : 4,
                  kAtOnce = (S::kRows < kMaxRows ? 8 : 4) / kTiles;  // tiles and parts under way
#pragma unroll
    for (int tiles = 0; tiles < S::kRows / 8; tiles += kTiles) {
      if (tiles * 8 >= num_columns) break;
#pragma unroll 1
      for (int from = first; from <= last; from += kAtOnce) {
        float4 more[kAtOnce][kTiles];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
          for (int j = 0; j < kTiles; ++j)
            more[i][j] = from + i <= last && (tiles + j) * 8 < num_columns
                             ? __ldcg(place(from + i, from + i == first, tiles + j))
                             : make_float4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
          for (int j = 0; j < kTiles; ++j) {
            float* const to = sums + 4 * (tiles + j);
            to[0] += more[i][j].x, to[1] += more[i][j].y, to[2] += more[i][j].z, to[3] += more[i][j].w;
          }
      }
    }
    return true;
  }

  template <class Out>
  __device__ __forceinline__ void write(int task, const float (&sums)[kSums], Out* out) const {
    const int lane = thread() % 32, first_row = row_block(task) * S::kRows + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int in_tile = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4 + half * 8;
      const int64_t feature = int64_t{task / args_.row_blocks} * int4::kTileFeatures + in_tile;
      if (feature >= args_.out_features) continue;
      const float bias = args_.bias == nullptr ? 0.0f : to_float(static_cast<const T*>(args_.bias)[feature]);
#pragma unroll
      for (int j = 0; j < S::kRows / 8; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int row = first_row + j * 8 + c;
          if (row < args_.rows)
            out[row * args_.out_features + feature] = from_float<Out>(sums[4 * j + 2 * half + c] + bias);
        }
      }
    }
  }

 private:
  __device__ int group() const { return static_cast<int>(threadIdx.x) / 128; }
  __device__ int thread() const { return static_cast<int>(threadIdx.x) % 128; }
  __device__ int row_block(int task) const { return static_cast<int>(blockIdx.y) + task % args_.row_blocks; }

  const Args& args_;
  const Ring<T, S> ring_;
  Stages<S>& stages_;
  const int codes_, scales_;  // bytes from the begin of a unit to this lane's
  int slot_ = 0;
  uint32_t parity_ = 0;
};

#endif  // LLMB_HAS_SM90A

template <class T, class S>
__global__ void __launch_bounds__(kThreads, S::kBlocksPerSm)
    linear_int4_wgmma_kernel(const __grid_constant__ Args args, const __grid_constant__ CUtensorMap unit_map,
                             const __grid_constant__ CUtensorMap x_map) {
#ifdef LLMB_HAS_SM90A
  Stages<S>& stages = Ring<T, S>().stages();
  if (threadIdx.x == kMultipliers) {
    ptx::tma_prefetch(&unit_map);
    ptx::tma_prefetch(&x_map);
    for (int i = 0; i < S::kStages; ++i) {
      ptx::mbarrier_init(&stages.full[i], 1);
      ptx::mbarrier_init(&stages.empty[i], kMultipliers / 32);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  ptx::launch_next_grid();
  const int num_units = args.num_tasks * args.num_steps;
  const int begin = first_unit(num_units, static_cast<int>(blockIdx.x));
  const int end = first_unit(num_units, static_cast<int>(blockIdx.x) + 1);
  Place place{begin / args.num_steps, begin % args.num_steps};
  if (threadIdx.x >= kMultipliers) {
    if (threadIdx.x == kMultipliers) load_units<T, S>(args, &unit_map, &x_map, place, end - begin);
    return;
  }
  ptx::wait_for_previous_grid();
  Multiplier<T, S> multiplier(args);
  float sums[Multiplier<T, S>::kSums];
  for (int left = end - begin; left > 0;) {
    const int num = min(left, args.num_steps - place.step);
    multiplier.multiply(num, sums);
    if (num == args.num_steps || multiplier.combine(place.task, place.step == 0, sums)) {
      if (args.is_float) multiplier.write(place.task, sums, static_cast<float*>(args.out));
      else multiplier.write(place.task, sums, static_cast<T*>(args.out));
    }
    left -= num, ++place.task, place.step = 0;
  }
#endif
}

}  // namespace

bool LinearInt4Wgmma::takes(int64_t out_features, int64_t in_features) {
  return in_features % 8 == 0 && int4::num_tiles(out_features) * kGroups <= code_tiles::kMaxTiles;
}

template <class T, class Out>
void LinearInt4Wgmma::run(const Int4View& weight, const T* x, int64_t rows, Out* out,
                          const code_tiles::Workspace& workspace, cudaStream_t stream) const {
  if (rows == 0 || weight.out_features == 0) return;
  LLMB_CHECK(takes(weight.out_features, weight.in_features) && rows <= INT32_MAX / 2);
  const int64_t tiles = int4::num_tiles(weight.out_features), steps = int4::num_steps(weight.in_features);
  const int64_t max_blocks = int64_t{options_.num_sms} * options_.blocks_per_sm;
  const int64_t part_bytes = int64_t{2} * int4::kTileFeatures * kMaxRows * int64_t{sizeof(float)};  // of a block
  LLMB_CHECK(max_blocks * part_bytes <= workspace.partials.bytes());
  // Blocks of rows of a launch, and how many of them share out their units together.
  const int64_t counted = code_tiles::kMaxTiles / kGroups / tiles;
  const int64_t held = options_.deterministic ? workspace.partials.bytes() / (max_blocks * part_bytes) : counted;
  const int64_t at_once = std::min(counted, held) * kMaxRows;
  for (int64_t first = 0; first < rows; first += at_once)
    int4::with_codes(weight.meaning, [&]<Meaning kMeaning>(int4::Codes<kMeaning>) {
      const auto launch_rows = [&]<int kRows>(std::integral_constant<int, kRows>) {
        using S = Shape<kMeaning, kRows>;
        const int64_t num = std::min(rows - first, at_once), row_blocks = ceil_div(num, int64_t{kRows});
        const int64_t together = options_.deterministic ? 1 : row_blocks, num_units = tiles * together * steps;
        // The fewer blocks, the fewer sums of parts, which are many with many rows.
        const int64_t most = options_.deterministic || kRows < tuning::kInt4OneBlockRows ? max_blocks : options_.num_sms;
        const int64_t num_blocks = std::clamp<int64_t>(num_units / code_tiles::kMinUnits, 1, most);
        LLMB_CHECK((num_units + 1) * num_blocks <= UINT32_MAX);
        const Args args{weight.bias,
                        out + first * weight.out_features,
                        std::is_same_v<Out, float>,
                        static_cast<int32_t>(num),
                        static_cast<int32_t>(together),
                        static_cast<int32_t>(tiles * together),
                        static_cast<int32_t>(steps),
                        weight.out_features,
                        workspace.partials.data<float4>(),
                        workspace.counters.data<int32_t>()};
        const CUtensorMap unit_map =
            make_tensor_map(CU_TENSOR_MAP_DATA_TYPE_UINT8, weight.units,
                            {{kPieceBytes, static_cast<uint64_t>(tiles * steps * (S::kUnitBytes / kPieceBytes))},
                             {kPieceBytes},
                             {kPieceBytes, S::kUnitBytes / kPieceBytes},
                             /*swizzle=*/false});
        const CUtensorMap x_map = make_tensor_map(
            x + first * weight.in_features, {{static_cast<uint64_t>(weight.in_features), static_cast<uint64_t>(num)},
                                             {static_cast<uint64_t>(weight.in_features) * sizeof(T)},
                                             {kUnitK, static_cast<uint32_t>(kRows)}});
        launch_ahead({dim3(static_cast<unsigned>(num_blocks), static_cast<unsigned>(row_blocks / together)),
                      dim3(kThreads), static_cast<size_t>(shared_bytes<S>()), stream},
                     linear_int4_wgmma_kernel<T, S>, args, unit_map, x_map);
      };
      const int64_t num = std::min(rows - first, at_once);
      if (num <= 16) return launch_rows(std::integral_constant<int, 16>());
      if (num <= 32) return launch_rows(std::integral_constant<int, 32>());
      if (num <= 64) return launch_rows(std::integral_constant<int, 64>());
      launch_rows(std::integral_constant<int, kMaxRows>());
    });
}

template void LinearInt4Wgmma::run(const Int4View&, const __nv_bfloat16*, int64_t, __nv_bfloat16*,
                                   const code_tiles::Workspace&, cudaStream_t) const;
template void LinearInt4Wgmma::run(const Int4View&, const __nv_bfloat16*, int64_t, float*, const code_tiles::Workspace&,
                                   cudaStream_t) const;
template void LinearInt4Wgmma::run(const Int4View&, const __half*, int64_t, __half*, const code_tiles::Workspace&,
                                   cudaStream_t) const;
template void LinearInt4Wgmma::run(const Int4View&, const __half*, int64_t, float*, const code_tiles::Workspace&,
                                   cudaStream_t) const;

}  // namespace llmb::cuda
