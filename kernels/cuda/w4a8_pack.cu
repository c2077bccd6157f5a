// Packing, at load: a block is a row, a warp makes 32 numbers at a time. Writing numbers: bound by their bytes; a block
// writes a unit, a thread two words of eight features and four neighbours along k at a time.
#include "kernels/cuda/w4a8_pack.h"

#include "kernels/cuda/device.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/quantize_rows.h"
#include "kernels/cuda/row_scale.h"
#include "kernels/cuda/w4a8_fragments.h"

namespace llmb::cuda {

namespace {

constexpr int kThreads = kRowThreads, kWarps = kThreads / kWarp;
constexpr float kLargest = 119;  // kLargestW4A8 of kernels/cpu/quantize.h
static_assert(w4a8::kGroup == kWarp);

__device__ float warp_min(float x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x = fminf(x, __shfl_xor_sync(kAllLanes, x, offset));
  return x;
}
__device__ float warp_max(float x) { return -warp_min(-x); }

// Where a group of k of a feature lies. Features i and i + 8 share bytes.
struct Place {
  uint8_t* unit;
  int sixteen, group, row, high;  // the row of eight, and whether it is the eight's or the one 8 on

  __device__ Place(uint8_t* units, int64_t num_steps, int64_t feature, int64_t first_k)
      : unit(units + (feature / w4a8::kTileFeatures * num_steps + first_k / w4a8::kUnitK) * int64_t{w4a8::kUnitBytes}),
        sixteen(static_cast<int>(feature % w4a8::kTileFeatures) / 16),
        group(static_cast<int>(first_k % w4a8::kUnitK) / w4a8::kGroup),
        row(static_cast<int>(feature % 8)),
        high(static_cast<int>(feature / 8 % 2)) {}

  // A warp's codes, one a lane, with their scale and zero.
  __device__ void write(uint32_t code, int scale, int zero) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    uint32_t word = code << (8 * (lane % 4) + 4 * high);
    word |= __shfl_xor_sync(kAllLanes, word, 1);
    word |= __shfl_xor_sync(kAllLanes, word, 2);
    const int place = w4a8::code_place(sixteen, group / 2, row * 4 + lane % 16 / 4) + (group % 2 * 2 + lane / 16) * 4;
    if (lane % 4 == 0) atomicOr(reinterpret_cast<uint32_t*>(unit + place), word);
    if (lane != 0) return;
    uint8_t* const scales = unit + w4a8::scale_place(sixteen, group, row * 4) + 2 * high;
    scales[0] = static_cast<uint8_t>(scale);
    scales[1] = static_cast<uint8_t>(128 - zero);
  }
};

// The operations of quantize_w4a8_group() in their order.
__global__ void __launch_bounds__(kThreads)
    quantize_w4a8_kernel(const float* __restrict__ x, int64_t in_features, int64_t first_feature, uint8_t* units,
                         float* __restrict__ scales) {
  __shared__ uint32_t partial[kWarps];
  const float* const row = x + int64_t{blockIdx.x} * in_features;
  const int64_t feature = first_feature + blockIdx.x, num_steps = w4a8::num_steps(in_features);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const RowScale scale_of_row = find_scale<1>(row, in_features, kLargest, partial);
  if (threadIdx.x == 0) scales[blockIdx.x] = scale_of_row.scale;
  for (int64_t first = int64_t{warp} * w4a8::kGroup; first < in_features; first += kWarps * w4a8::kGroup) {
    const Place place(units, num_steps, feature, first);
    if (scale_of_row.factor == 0) {
      place.write(0, 0, 0);
      continue;
    }
    const float value = first + lane < in_features ? __fmul_rn(row[first + lane], scale_of_row.factor) : 0.0f;
    const float least = warp_min(value), most = warp_max(value);
    const int scale = max(1, __float2int_rn(__fmul_rn(__fsub_rn(most, least), 1 / 15.0f)));
    const auto scale_f = static_cast<float>(scale);
    const int zero = __float2int_rn(__fmul_rn(__fsub_rn(__fsub_rn(__fmul_rn(15, scale_f), most), least), 0.5f));
    const float code = __fmul_rn(__fadd_rn(value, static_cast<float>(zero)), __fdiv_rn(1, scale_f));
    place.write(static_cast<uint32_t>(__float2int_rn(fminf(fmaxf(code, 0), 15))), scale, zero);
  }
}

__global__ void __launch_bounds__(kThreads) widen_w4a8_kernel(W4A8View weight, int64_t row_bytes, int8_t* out) {
  const int64_t num_steps = w4a8::num_steps(weight.in_features), step = blockIdx.x % num_steps;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, sixteen = static_cast<int>(threadIdx.x) / kWarp;
  const uint8_t* const unit = weight.units + int64_t{blockIdx.x} * w4a8::kUnitBytes;
  const int64_t feature = blockIdx.x / num_steps * w4a8::kTileFeatures + sixteen * 16 + lane / 4;
  for (int half = 0; half < 2; ++half) {
    const w4a8::Fragments numbers = w4a8::fragments_of(unit, sixteen, half, lane);
    for (int i = 0; i < 8; ++i) {
      const int64_t row = feature + i % 2 * 8;
      const int64_t k = step * w4a8::kUnitK + half * 64 + i / 4 * 32 + i / 2 % 2 * 16 + lane % 4 * 4;
      const w4a8::Fragment& fragment = i < 4 ? numbers.first : numbers.second;
      if (row < weight.out_features && k < row_bytes)
        *reinterpret_cast<uint32_t*>(out + row * row_bytes + k) = fragment.words[i % 4];
    }
  }
}

}  // namespace

void quantize_w4a8(const float* x, int64_t rows, int64_t in_features, int64_t first_feature, uint8_t* units,
                   float* scales, cudaStream_t stream) {
  if (rows == 0) return;
  launch({dim3(static_cast<unsigned>(rows)), dim3(kThreads), 0, stream}, quantize_w4a8_kernel, x, in_features,
         first_feature, units, scales);
}

void widen_w4a8(const W4A8View& weight, int8_t* out, cudaStream_t stream) {
  const int64_t num_units = w4a8::num_tiles(weight.out_features) * w4a8::num_steps(weight.in_features);
  if (num_units == 0) return;
  launch({dim3(static_cast<unsigned>(num_units)), dim3(kThreads), 0, stream}, widen_w4a8_kernel, weight,
         int8_row_bytes(weight.in_features), out);
}

}  // namespace llmb::cuda
