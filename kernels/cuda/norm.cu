// Bound by bytes: 12 of them for each bf16 element (fp32 residual in and out, delta, out). One pass over global memory:
// a row stays in the registers of its threads between the sum of squares and the scaling. A row of up to 1024 packed
// elements is one warp's, a longer one a block's; rows too long for a block's registers are read again.
#include "kernels/cuda/norm.h"

#include <algorithm>

#include "core/types.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/warp.h"

namespace llmb::cuda {

namespace {

constexpr int kMaxThreads = 1024;
constexpr int kWarpItems = 4;     // packs of a lane, at most, where a row is one warp's
constexpr int kRowsPerBlock = 4;  // where a row is one warp's

// The sum over the threads of a row (blockDim.x of them), the same bits in each.
__device__ float row_sum(float x, float* partial_sums) {
  x = warp_sum(x);
  if (blockDim.x == kWarp) return x;
  const int lane = threadIdx.x % kWarp, num_warps = blockDim.x / kWarp;
  if (lane == 0) partial_sums[threadIdx.x / kWarp] = x;
  __syncthreads();
  return warp_sum(lane < num_warps ? partial_sums[lane] : 0.0f);
}

__device__ float inverse_rms(float sum_of_squares, int32_t hidden, float eps) {
  return 1.0f / sqrtf(sum_of_squares / static_cast<float>(hidden) + eps);
}

template <class T, int kWidth>
__device__ void add_delta(float (&r)[kWidth], float* residual, const T* delta) {
  float d[kWidth];
  load_floats(delta, d);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) r[i] += d[i];
  store_floats(r, residual);
}

template <class T, int kWidth>
__device__ void scale_and_store(const float (&r)[kWidth], const float (&w)[kWidth], float scale, T* out) {
  float y[kWidth];
#pragma unroll
  for (int i = 0; i < kWidth; ++i) y[i] = r[i] * scale * w[i];
  store_floats(y, out);
}

// blockDim: (threads of a row, rows of a block). More rows than one only where a row is one warp's.
template <class T, int kWidth, int kItems>
__global__ void __launch_bounds__(kMaxThreads)
    add_rms_norm_kernel(float* __restrict__ residual, const T* __restrict__ delta, const float* __restrict__ weight,
                        float eps, int64_t rows, int32_t hidden, T* __restrict__ out) {
  ptx::follow_previous_grid();
  __shared__ float partial_sums[kMaxThreads / kWarp];
  constexpr bool kWeightsEarly = kItems * kWidth <= 16;  // while registers allow: their latency hides behind the sum
  const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  const int64_t base = row * hidden;
  float r[kItems][kWidth], w[kItems][kWidth];
  float squares = 0;
#pragma unroll
  for (int item = 0; item < kItems; ++item) {
    const int32_t at = (item * blockDim.x + threadIdx.x) * kWidth;
    if (at >= hidden) continue;
    load_floats(residual + base + at, r[item]);
    if (kWeightsEarly) load_floats(weight + at, w[item]);
    if (delta != nullptr) add_delta(r[item], residual + base + at, delta + base + at);
  }
#pragma unroll
  for (int item = 0; item < kItems; ++item) {
    if (static_cast<int32_t>((item * blockDim.x + threadIdx.x) * kWidth) >= hidden) continue;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) squares = fmaf(r[item][i], r[item][i], squares);
  }
  const float scale = inverse_rms(row_sum(squares, partial_sums), hidden, eps);
#pragma unroll
  for (int item = 0; item < kItems; ++item) {
    const int32_t at = (item * blockDim.x + threadIdx.x) * kWidth;
    if (at >= hidden) continue;
    if (!kWeightsEarly) load_floats(weight + at, w[item]);
    scale_and_store(r[item], w[item], scale, out + base + at);
  }
}

// Any length: the second loop reads the residual again. A block is a row.
template <class T, int kWidth>
__global__ void __launch_bounds__(kMaxThreads)
    add_rms_norm_long_kernel(float* residual, const T* __restrict__ delta, const float* __restrict__ weight, float eps,
                             int32_t hidden, T* __restrict__ out) {
  ptx::follow_previous_grid();
  __shared__ float partial_sums[kMaxThreads / kWarp];
  const int64_t base = int64_t{blockIdx.x} * hidden;
  float r[kWidth], w[kWidth], squares = 0;
  for (int32_t at = threadIdx.x * kWidth; at < hidden; at += kMaxThreads * kWidth) {
    load_floats(residual + base + at, r);
    if (delta != nullptr) add_delta(r, residual + base + at, delta + base + at);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) squares = fmaf(r[i], r[i], squares);
  }
  const float scale = inverse_rms(row_sum(squares, partial_sums), hidden, eps);
  for (int32_t at = threadIdx.x * kWidth; at < hidden; at += kMaxThreads * kWidth) {
    load_floats(residual + base + at, r);
    load_floats(weight + at, w);
    scale_and_store(r, w, scale, out + base + at);
  }
}

template <class T, int kWidth>
void launch_rows(float* residual, const T* delta, const float* weight, float eps, int64_t rows, int32_t hidden, T* out,
                 cudaStream_t stream) {
  const auto packs = static_cast<int32_t>(hidden / kWidth);
  const auto run = [&](auto kernel, int32_t threads_per_row, int32_t rows_per_block) {
    const dim3 grid(static_cast<unsigned>(ceil_div(rows, rows_per_block)));
    const dim3 block(static_cast<unsigned>(threads_per_row), static_cast<unsigned>(rows_per_block));
    launch_ahead({grid, block, 0, stream}, kernel, residual, delta, weight, eps, rows, hidden, out);
  };
  const auto warps_for = [](int64_t threads) { return static_cast<int32_t>(ceil_div(threads, kWarp)) * kWarp; };
  if (packs <= kWarp) return run(add_rms_norm_kernel<T, kWidth, 1>, kWarp, kRowsPerBlock);
  if (packs <= 2 * kWarp) return run(add_rms_norm_kernel<T, kWidth, 2>, kWarp, kRowsPerBlock);
  if (packs <= kWarpItems * kWarp) return run(add_rms_norm_kernel<T, kWidth, kWarpItems>, kWarp, kRowsPerBlock);
  if (packs <= 2 * kMaxThreads) return run(add_rms_norm_kernel<T, kWidth, 2>, warps_for(ceil_div(packs, 2)), 1);
  if (packs <= 4 * kMaxThreads) return run(add_rms_norm_kernel<T, kWidth, 4>, kMaxThreads, 1);
  launch_ahead({dim3(static_cast<unsigned>(rows)), dim3(kMaxThreads), 0, stream}, add_rms_norm_long_kernel<T, kWidth>,
               residual, delta, weight, eps, hidden, out);
}

}  // namespace

template <class T>
void add_rms_norm(float* residual, const T* delta, const float* weight, float eps, int64_t rows, int64_t hidden, T* out,
                  cudaStream_t stream) {
  if (rows == 0) return;
  const auto width = static_cast<int32_t>(hidden);
  if (can_pack(hidden, residual, delta, weight, out))
    launch_rows<T, kPackWidth>(residual, delta, weight, eps, rows, width, out, stream);
  else launch_rows<T, 1>(residual, delta, weight, eps, rows, width, out, stream);
}

template void add_rms_norm(float*, const float*, const float*, float, int64_t, int64_t, float*, cudaStream_t);
template void add_rms_norm(float*, const __nv_bfloat16*, const float*, float, int64_t, int64_t, __nv_bfloat16*,
                           cudaStream_t);
template void add_rms_norm(float*, const __half*, const float*, float, int64_t, int64_t, __half*, cudaStream_t);

}  // namespace llmb::cuda
