// Few rows: bound by the weight's bytes. Many: by what the second-level cache gives, features + rows bytes for features
// · rows multiply-adds of a value of k, since int8 has twice the multiply-adds of bf16: hence tiles of 128 features by
// 256 rows.
#include "kernels/cuda/linear_wgmma8.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/tuning.h"
#include "kernels/cuda/wgmma8_tiles.h"

namespace llmb::cuda {

namespace {

using namespace wgmma8;  // NOLINT

constexpr int kMinSteps = 4;  // of a part of k
constexpr int32_t kMaxParts = 16;
constexpr int32_t kMinFeatures = 32, kWantedFeatures = 128;  // of a tile
constexpr int kMaxTileSums = 32768;                          // features, in whole warpgroups, by rows
constexpr int kMaxCounters = 4096;  // one for each tile and warpgroup whose parts are shared out

template <class Code, class Out, int kRows>
__global__ void __launch_bounds__(128 * (max_groups<Code>(kRows) + 1), 1)
    linear_wgmma8_kernel(const __grid_constant__ Args<Out> args, const __grid_constant__ CUtensorMap weight_map,
                         const __grid_constant__ CUtensorMap x_map) {
#ifdef LLMB_HAS_SM90A
  const Tile& tile = args.tile;
  auto* const state = reinterpret_cast<State*>(dynamic_shared<char>() + tile.state_at());
  const int loader = 128 * tile.num_groups;
  if (static_cast<int>(threadIdx.x) == loader) {
    ptx::tma_prefetch(&weight_map);
    ptx::tma_prefetch(&x_map);
    for (int i = 0; i < tile.num_stages; ++i) {
      ptx::mbarrier_init(&state->full[i], 1);
      ptx::mbarrier_init(&state->empty[i], static_cast<uint32_t>(4 * tile.num_groups));
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  ptx::launch_next_grid();
  if (static_cast<int>(threadIdx.x) >= loader) {
    ptx::registers_decrease<kLoaderRegisters>();
    if (static_cast<int>(threadIdx.x) == loader) load(args, &weight_map, &x_map, state);
    return;
  }
  ptx::registers_increase<multiplier_registers(max_groups<Code>(kRows))>();
  ptx::wait_for_previous_grid();
  Multiplier<Code, Out, kRows> multiplier(args, state);
  for (int i = static_cast<int>(blockIdx.x); i < num_tasks(args); i += static_cast<int>(gridDim.x))
    multiplier.run(Task(args, i));
#endif
}

Tile make_tile(const Wgmma8Tiling& tiling) {
  Tile tile{tiling.features, tiling.rows, static_cast<int32_t>(ceil_div(tiling.features, kGroupFeatures)), 0};
  tile.num_stages = std::min(kMaxStages, (kMaxShared - tile.state_at() - int{sizeof(State)}) / tile.stage_bytes());
  return tile;
}

int64_t num_tiles(const Wgmma8Tiling& tiling, int64_t out_features, int64_t rows) {
  return ceil_div(out_features, tiling.features) * ceil_div(rows, tiling.rows);
}

// The smallest that takes so many rows at once, or the largest.
int32_t tile_rows(int64_t rows, int32_t largest) {
  int32_t result = 16;
  while (result < rows && result < largest) result *= 2;
  return result;
}

// So many features that there are num_tiles tiles of a row block, or a few less.
int32_t even_features(int64_t out_features, int64_t num_tiles) {
  return static_cast<int32_t>(ceil_div(ceil_div(out_features, std::max<int64_t>(num_tiles, 1)), 8) * 8);
}

// How many cycles of a multiprocessor a product of int8 takes. Reckoned.
double int8_cycles(const Wgmma8Tiling& t, int64_t out_features, int64_t num_steps, int64_t rows, int32_t num_sms) {
  const double num_tasks = static_cast<double>(num_tiles(t, out_features, rows) * t.num_parts);
  const double waves = std::ceil(num_tasks / num_sms), active = std::min<double>(num_tasks, num_sms);
  const double bytes_per_cycle = std::min(tuning::kSmBytesPerCycle, tuning::kL2BytesPerCycle * num_sms / active);
  const double groups = static_cast<double>(ceil_div(t.features, kGroupFeatures));
  const double multiply = groups * kGroupFeatures * t.rows * kStepK / tuning::kInt8ProductsPerCycle;
  const double load = (t.features + t.rows) * kStepK / bytes_per_cycle;
  const double sums = groups * kGroupFeatures * t.rows * 4 / bytes_per_cycle;
  const double steps = static_cast<double>(ceil_div(num_steps, t.num_parts));
  return waves * (steps * std::max(multiply, load) + tuning::kTaskCycles + sums) +
         (t.num_parts > 1 ? tuning::kTaskCycles + sums * (1 + t.num_parts) : 0);
}

template <class Code, class Out, int kRows>
void launch_tiles(const Args<Out>& args, const CUtensorMap& weight_map, const CUtensorMap& x_map, int64_t num_blocks,
                  cudaStream_t stream) {
  LLMB_CHECK(args.tile.num_groups <= max_groups<Code>(kRows) && args.tile.num_stages > 0);
  launch_ahead({dim3(static_cast<unsigned>(num_blocks)), dim3(static_cast<unsigned>(args.tile.num_threads())),
                args.tile.state_at() + sizeof(State), stream},
               linear_wgmma8_kernel<Code, Out, kRows>, args, weight_map, x_map);
}

template <class Code, class View, class Rows, class Out>
void multiply(const View& weight, const Rows& x, int64_t rows, DType bias_dtype, const Wgmma8Tiling& tiling,
              int32_t num_sms, const DeviceMemory& partials, const DeviceMemory& counters, Out* out,
              cudaStream_t stream) {
  const Tile tile = make_tile(tiling);
  const Args<Out> args{weight.scales,
                       x.scales,
                       weight.bias,
                       out,
                       weight.out_features,
                       static_cast<int32_t>(rows),
                       static_cast<int32_t>(ceil_div(rows, tiling.rows)),
                       static_cast<int32_t>(ceil_div(weight.out_features, tiling.features)),
                       static_cast<int32_t>(ceil_div(weight.row_bytes(), kStepK)),
                       tiling.num_parts,
                       tile,
                       bias_dtype,
                       tiling.is_split,
                       weight.out_features % 8 == 0 && reinterpret_cast<uintptr_t>(out) % 16 == 0,
                       partials.data<uint4>(),
                       counters.data<int32_t>()};
  const auto map_of = [&](const void* matrix, int64_t num_rows, int32_t box_rows) {
    return make_tensor_map(CU_TENSOR_MAP_DATA_TYPE_UINT8, matrix,
                           {{static_cast<uint64_t>(weight.row_bytes()), static_cast<uint64_t>(num_rows)},
                            {static_cast<uint64_t>(weight.row_bytes())},
                            {kStepK, static_cast<uint32_t>(box_rows)}});
  };
  const CUtensorMap weight_map = map_of(weight.weight, weight.out_features, tiling.features);
  const CUtensorMap x_map = map_of(x.values, rows, tiling.rows);
  const int64_t num_tasks = num_tiles(tiling, weight.out_features, rows) * (tiling.is_split ? tiling.num_parts : 1);
  const int64_t num_blocks = std::min<int64_t>(num_tasks, num_sms);
  switch (tiling.rows) {
    case 16:
      return launch_tiles<Code, Out, 16>(args, weight_map, x_map, num_blocks, stream);
    case 32:
      return launch_tiles<Code, Out, 32>(args, weight_map, x_map, num_blocks, stream);
    case 64:
      return launch_tiles<Code, Out, 64>(args, weight_map, x_map, num_blocks, stream);
    case 128:
      return launch_tiles<Code, Out, 128>(args, weight_map, x_map, num_blocks, stream);
    default:
      LLMB_CHECK(kIsInt8<Code> && tiling.rows == 256);
      if constexpr (kIsInt8<Code>) launch_tiles<Code, Out, 256>(args, weight_map, x_map, num_blocks, stream);
  }
}

}  // namespace

LinearWgmma8::LinearWgmma8(int32_t num_sms, cudaStream_t stream)
    : num_sms_(num_sms),
      partials_(int64_t{kMaxTileSums} * std::max(num_sms, 8) * int64_t{sizeof(float)}),
      counters_(kMaxCounters * int64_t{sizeof(int32_t)}) {
  check(cudaMemsetAsync(counters_.data(), 0, counters_.bytes(), stream), "cudaMemsetAsync");
}

bool LinearWgmma8::fits(const Wgmma8Tiling& tiling, int64_t out_features, int64_t rows) const {
  if (!tiling.is_split) return true;
  const int64_t num_groups = ceil_div(tiling.features, kGroupFeatures);
  const int64_t tiles = num_tiles(tiling, out_features, rows);
  return tiles * num_groups <= kMaxCounters &&
         tiles * tiling.num_parts * num_groups * kGroupFeatures * tiling.rows * int64_t{sizeof(float)} <=
             partials_.bytes();
}

Wgmma8Tiling LinearWgmma8::int8_tiling(int64_t out_features, int64_t in_features, int64_t rows) {
  const int64_t num_steps = std::max<int64_t>(ceil_div(int8_row_bytes(in_features), kStepK), 1);
  Wgmma8Tiling& best = int8_tilings_[{out_features, in_features, rows}];
  if (best.features > 0) return best;
  double best_cycles = 0;
  for (int32_t of_rows = 16; of_rows <= tile_rows(rows, 256); of_rows *= 2)
    for (int32_t parts = 1; parts == 1 || (parts <= kMaxParts && num_steps / parts >= kMinSteps); ++parts) {
      const int64_t tiles = num_sms_ / parts / ceil_div(rows, of_rows);
      for (const int32_t features : {even_features(out_features, tiles), 64, 128, 192, 256}) {
        const Wgmma8Tiling tiling{std::max(features, kMinFeatures), of_rows, parts, parts > 1};
        if (tiling.features > kGroupFeatures * max_groups<int8_t>(of_rows)) continue;
        if (parts > 1 && num_tiles(tiling, out_features, rows) * parts > num_sms_) continue;
        if (!fits(tiling, out_features, rows)) continue;
        const double cycles = int8_cycles(tiling, out_features, num_steps, rows, num_sms_);
        if (best.features == 0 || cycles < best_cycles) best = tiling, best_cycles = cycles;
      }
    }
  return best;
}

// As few parts as let a tile of few rows have 128 features where there is one for each multiprocessor.
Wgmma8Tiling LinearWgmma8::fp8_tiling(int64_t out_features, int64_t in_features, int64_t rows) const {
  const int64_t num_steps = ceil_div(fp8::row_bytes(in_features), kStepK);
  int32_t parts = 1;
  while (even_features(out_features, num_sms_ / parts) < kWantedFeatures && parts < num_sms_ &&
         num_steps / (parts + 1) >= kMinSteps)
    ++parts;
  const int32_t of_rows = tile_rows(rows, 128), most = kGroupFeatures * max_groups<E4m3>(of_rows);
  const int32_t even = std::clamp(even_features(out_features, num_sms_ / parts), kMinFeatures, most);
  const Wgmma8Tiling split{even, of_rows, parts, true}, whole{most, of_rows, parts, false};
  return rows <= of_rows && fits(split, out_features, rows) ? split : whole;
}

template <class Out>
void LinearWgmma8::run(const Int8View& weight, const Int8Rows& x, int64_t rows, Out* out, cudaStream_t stream) {
  if (rows == 0 || weight.out_features == 0) return;
  run(weight, x, rows, int8_tiling(weight.out_features, weight.in_features, rows), out, stream);
}

template <class Out>
void LinearWgmma8::run(const Int8View& weight, const Int8Rows& x, int64_t rows, const Wgmma8Tiling& tiling, Out* out,
                       cudaStream_t stream) {
  LLMB_CHECK(weight.in_features <= kMaxInt8Features && rows <= INT32_MAX / 2);
  LLMB_CHECK(fits(tiling, weight.out_features, rows) && (tiling.is_split || tiling.num_parts == 1));
  if (rows == 0 || weight.out_features == 0) return;
  multiply<int8_t>(weight, x, rows, DType::kF32, tiling, num_sms_, partials_, counters_, out, stream);
}

template <class Out>
void LinearWgmma8::run(const Fp8View& weight, const Fp8Rows& x, int64_t rows, DType bias_dtype, Out* out,
                       cudaStream_t stream) {
  LLMB_CHECK(rows <= INT32_MAX / 2);
  if (rows == 0 || weight.out_features == 0) return;
  multiply<E4m3>(weight, x, rows, bias_dtype, fp8_tiling(weight.out_features, weight.in_features, rows), num_sms_,
                 partials_, counters_, out, stream);
}

template void LinearWgmma8::run(const Int8View&, const Int8Rows&, int64_t, float*, cudaStream_t);
template void LinearWgmma8::run(const Int8View&, const Int8Rows&, int64_t, const Wgmma8Tiling&, float*, cudaStream_t);
template void LinearWgmma8::run(const Fp8View&, const Fp8Rows&, int64_t, DType, float*, cudaStream_t);
template void LinearWgmma8::run(const Int8View&, const Int8Rows&, int64_t, __nv_bfloat16*, cudaStream_t);
template void LinearWgmma8::run(const Int8View&, const Int8Rows&, int64_t, const Wgmma8Tiling&, __nv_bfloat16*,
                                cudaStream_t);
template void LinearWgmma8::run(const Fp8View&, const Fp8Rows&, int64_t, DType, __nv_bfloat16*, cudaStream_t);
template void LinearWgmma8::run(const Int8View&, const Int8Rows&, int64_t, __half*, cudaStream_t);
template void LinearWgmma8::run(const Int8View&, const Int8Rows&, int64_t, const Wgmma8Tiling&, __half*, cudaStream_t);
template void LinearWgmma8::run(const Fp8View&, const Fp8Rows&, int64_t, DType, __half*, cudaStream_t);

}  // namespace llmb::cuda
