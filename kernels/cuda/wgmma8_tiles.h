// The warpgroups of linear_wgmma8 that multiply, 64 features each as wgmma's first operand, and write their outputs.
// Device code only.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/types.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/wgmma8_tasks.h"

namespace llmb::cuda::wgmma8 {

#ifdef LLMB_HAS_SM90A

template <class To, class From>
__device__ __forceinline__ To bits_as(From x) {
  To result;
  memcpy(&result, &x, sizeof(result));
  return result;
}

// One of the warpgroups that multiply: 64 features times kRows rows. Sums lie as wgmma leaves them.
template <class Code, class Out, int kRows>
class Multiplier {
 public:
  using Sum = SumOf<Code>;
  static constexpr int kSums = kRows / 2;  // of a thread

  __device__ Multiplier(const Args<Out>& args, State* state)
      : args_(args), state_(*state), group_(static_cast<int>(threadIdx.x) / 128) {}

  __device__ __forceinline__ void run(const Task& task) {
    const Scales scales = load_scales(task);
    Sum sums[kSums];
    multiply(num_steps(task.part), sums);
    if constexpr (!kIsInt8<Code>) add_other_parts(task, sums);
    if (!args_.is_split || args_.num_parts == 1 || combine(task, sums)) write(task, scales, sums);
  }

 private:
  // Those of this thread's outputs, on their way while it multiplies.
  struct Scales {
    float feature[2], bias[2], row[(kRows + 127) / 128];
  };

  __device__ int thread() const { return static_cast<int>(threadIdx.x % 128); }
  __device__ int num_steps(int part) const { return first_step(args_, part + 1) - first_step(args_, part); }
  // One arrival for each warp.
  __device__ void release(int slot) const {
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&state_.empty[slot]);
  }
  // One of the two features of this thread, counted from the tile's first.
  __device__ int in_tile(int half) const {
    return group_ * kGroupFeatures + thread() / 32 * 16 + thread() % 32 / 4 + half * 8;
  }
  __device__ bool is_inside(const Task& task, int in_tile) const {
    return in_tile < args_.tile.features && int64_t{task.tile} * args_.tile.features + in_tile < args_.out_features;
  }

  __device__ __forceinline__ float bias_of(int64_t feature) const {
    if (args_.bias == nullptr) return 0;
    if (args_.bias_dtype == DType::kBF16) return to_float(static_cast<const __nv_bfloat16*>(args_.bias)[feature]);
    if (args_.bias_dtype == DType::kF16) return to_float(static_cast<const __half*>(args_.bias)[feature]);
    return static_cast<const float*>(args_.bias)[feature];
  }

  __device__ __forceinline__ Scales load_scales(const Task& task) const {
    Scales scales{};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!is_inside(task, in_tile(half))) continue;
      const int64_t feature = int64_t{task.tile} * args_.tile.features + in_tile(half);
      scales.feature[half] = args_.scales[feature];
      scales.bias[half] = bias_of(feature);
    }
#pragma unroll
    for (int i = 0; i < (kRows + 127) / 128; ++i) {
      const int in_block = thread() + i * 128, row = task.block * kRows + in_block;
      if (in_block < kRows && row < args_.rows) scales.row[i] = args_.x_scales[row];
    }
    return scales;
  }

  // Queues the products of the next step as one group; added to `sums` where `add`.
  __device__ __forceinline__ void queue_step(bool add, Sum (&sums)[kSums]) const {
    const char* const stage = dynamic_shared<char>() + slot_ * args_.tile.stage_bytes();
    const char* const weight = stage + group_ * kGroupFeatures * kStepK;
    const char* const x = stage + args_.tile.weight_bytes();
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kStepK; k += 32) {
      const uint64_t a = ptx::wgmma_descriptor(weight + k, 0, 1024), b = ptx::wgmma_descriptor(x + k, 0, 1024);
      if constexpr (kIsInt8<Code>) ptx::wgmma_int8<kRows>(sums, a, b, add || k > 0);
      else ptx::wgmma_e4m3<kRows>(sums, a, b, add || k > 0);
    }
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ void next_slot() {
    if (++slot_ == args_.tile.num_stages) slot_ = 0, parity_ ^= 1;
  }

  // The next num_steps steps.
  __device__ __forceinline__ void multiply(int num_steps, Sum (&sums)[kSums]) {
    if constexpr (kIsInt8<Code>) {
      int previous = -1;
      for (int i = 0; i < num_steps; ++i) {
        ptx::mbarrier_wait(&state_.full[slot_], parity_);
        queue_step(i > 0, sums);
        if (previous >= 0) {
          ptx::wgmma_wait<1>();
          release(previous);
        }
        previous = slot_;
        next_slot();
      }
      ptx::wgmma_wait<0>();
      release(previous);
    } else {
#pragma unroll
      for (int s = 0; s < kSums; ++s) sums[s] = 0;
      for (int i = 0; i < num_steps; ++i) {
        float step[kSums];
        ptx::mbarrier_wait(&state_.full[slot_], parity_);
        queue_step(false, step);
        ptx::wgmma_wait<0>();
        release(slot_);
        next_slot();
#pragma unroll
        for (int s = 0; s < kSums; ++s) sums[s] += step[s];
      }
    }
  }

  // As combine() adds them.
  __device__ __forceinline__ void add_other_parts(const Task& task, Sum (&sums)[kSums]) {
    for (int part = task.part + 1; part < task.end_part; ++part) {
      Sum more[kSums];
      multiply(num_steps(part), more);
#pragma unroll
      for (int s = 0; s < kSums; ++s) sums[s] += more[s];
    }
  }

  // Leaves the sums of a part of k in memory. Whether the tile's other parts are there, too: then this thread gets
  // their sum, in the order of k.
  __device__ __forceinline__ bool combine(const Task& task, Sum (&sums)[kSums]) const {
    const int num_parts = args_.num_parts, index = task.block * args_.num_tiles + task.tile;
    const int num_groups = args_.tile.num_groups, stride = num_groups * (kGroupFeatures * kRows / 4);  // of a part
    uint4* const partials =
        args_.partials + int64_t{index} * num_parts * stride + group_ * (kGroupFeatures * kRows / 4) + thread();
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i)
      __stcg(partials + task.part * stride + i * 128,
             make_uint4(bits_as<uint32_t>(sums[4 * i]), bits_as<uint32_t>(sums[4 * i + 1]),
                        bits_as<uint32_t>(sums[4 * i + 2]), bits_as<uint32_t>(sums[4 * i + 3])));
    __threadfence();
    ptx::bar_sync(static_cast<uint32_t>(1 + group_), 128);
    if (thread() == 0) {
      int32_t* const counter = args_.counters + index * num_groups + group_;
      state_.is_last[group_] = atomicAdd(counter, 1) == num_parts - 1;
      if (state_.is_last[group_]) *counter = 0;
    }
    ptx::bar_sync(static_cast<uint32_t>(1 + group_), 128);
    if (!state_.is_last[group_]) return false;
    __threadfence();
#pragma unroll(kRows < 128 ? 2 : 1)
    for (int part = 0; part < num_parts; ++part) {
#pragma unroll
      for (int i = 0; i < kSums / 4; ++i) {
        const uint4 more = __ldcg(partials + part * stride + i * 128);
        const Sum four[4] = {bits_as<Sum>(more.x), bits_as<Sum>(more.y), bits_as<Sum>(more.z), bits_as<Sum>(more.w)};
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[4 * i + j] = part == 0 ? four[j] : sums[4 * i + j] + four[j];
      }
    }
    return true;
  }

  // Not one fused multiply and add: linear_int8's bits.
  __device__ __forceinline__ float output_of(Sum sum, const Scales& scales, int half, float x_scale) const {
    const float value = __fmul_rn(__fmul_rn(static_cast<float>(sum), scales.feature[half]), x_scale);
    return args_.bias == nullptr ? value : __fadd_rn(value, scales.bias[half]);
  }

  // A thread's sums 4j + 2 · half + c are of row 8j + 2 · (lane % 4) + c.
  __device__ __forceinline__ void write(const Task& task, const Scales& scales, const Sum (&sums)[kSums]) const {
    float* const x_scales = reinterpret_cast<float*>(dynamic_shared<char>() + args_.tile.scales_at(group_));
    const auto barrier = static_cast<uint32_t>(1 + group_);
    ptx::bar_sync(barrier, 128);  // nobody reads the last task's
#pragma unroll
    for (int i = 0; i < (kRows + 127) / 128; ++i)
      if (thread() + i * 128 < kRows) x_scales[thread() + i * 128] = scales.row[i];
    ptx::bar_sync(barrier, 128);
    const int pair = thread() % 4 * 2;
    if constexpr (sizeof(Out) == 2) {
      if (args_.has_packs) return write_packs(task, scales, sums, x_scales + pair);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!is_inside(task, in_tile(half))) continue;
      const int64_t feature = int64_t{task.tile} * args_.tile.features + in_tile(half);
#pragma unroll
      for (int j = 0; j < kRows / 8; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int64_t row = task.block * kRows + j * 8 + pair + c;
          if (row < args_.rows)
            args_.out[row * args_.out_features + feature] =
                from_float<Out>(output_of(sums[4 * j + 2 * half + c], scales, half, x_scales[j * 8 + pair + c]));
        }
    }
  }

  // 32 rows at a time, transposed on their way through shared memory.
  __device__ __forceinline__ void write_packs(const Task& task, const Scales& scales, const Sum (&sums)[kSums],
                                              const float* x_scales) const {
    constexpr int kNumRows = kRows < kStagedRows ? kRows : kStagedRows, kPassRows = 16;
    const auto barrier = static_cast<uint32_t>(1 + group_);
    char* const staged = dynamic_shared<char>() + args_.tile.staged_at(group_);
    const int lane = thread() % 32, matrix = lane / 8;
    // Where this lane's column of a matrix goes: matrices 0 and 1 are features 0 to 15 of the warp, 2 and 3 the same of
    // the next 8 rows.
    char* const to = staged + (matrix / 2 * 8 + lane % 8) * kStagedStride + thread() / 32 * 32 + matrix % 2 * 16;
    const int piece = thread() % 8, in_group = group_ * kGroupFeatures + piece * 8;
    const int64_t feature = int64_t{task.tile} * args_.tile.features + in_group;
    const bool has_piece = is_inside(task, in_group);
#pragma unroll
    for (int first = 0; first < kRows; first += kNumRows) {
#pragma unroll
      for (int row = 0; row < kNumRows; row += 16) {
        uint32_t registers[4];
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          const int j = (first + row) / 8 + m / 2, half = m % 2;
          uint32_t two[2];
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const float value = output_of(sums[4 * j + 2 * half + c], scales, half, x_scales[8 * j + c]);
            two[c] = bits_as<uint16_t>(from_float<Out>(value));
          }
          registers[m] = two[0] | two[1] << 16;
        }
        ptx::stmatrix_x4_trans(to + row * kStagedStride, registers);
      }
      ptx::bar_sync(barrier, 128);
#pragma unroll
      for (int pass = 0; pass < kNumRows; pass += kPassRows) {
        const int in_chunk = pass + thread() / 8;
        const int64_t row = int64_t{task.block} * kRows + first + in_chunk;
        if (has_piece && row < args_.rows)
          *reinterpret_cast<uint4*>(args_.out + row * args_.out_features + feature) =
              *reinterpret_cast<const uint4*>(staged + in_chunk * kStagedStride + piece * 16);
      }
      ptx::bar_sync(barrier, 128);
    }
  }

  const Args<Out>& args_;
  State& state_;
  const int group_;
  int slot_ = 0;
  uint32_t parity_ = 0;
};

#endif  // LLMB_HAS_SM90A

}  // namespace llmb::cuda::wgmma8
