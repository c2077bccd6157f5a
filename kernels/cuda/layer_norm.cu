// Bound by bytes: what is read a second and a third time comes from a cache. add_layer_norm: a block is a row.
// rms_norm_groups: a group is a warp's, or a block's where it is long. layer_norm_groups: a group is a warp's.
#include "kernels/cuda/layer_norm.h"

#include "core/types.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/warp.h"

namespace llmb::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kLongGroup = 512;

// The sum over the block, the same bits in each thread. May be called again at once.
__device__ float block_sum(float x, float* partial_sums) {
  x = warp_sum(x);
  __syncthreads();  // the last call's sums have been read
  if (threadIdx.x % kWarp == 0) partial_sums[threadIdx.x / kWarp] = x;
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  return warp_sum(lane < kThreads / kWarp ? partial_sums[lane] : 0.0f);
}

template <class T, class Out, int kWidth>
__global__ void __launch_bounds__(kThreads)
    add_layer_norm_kernel(float* residual, const T* __restrict__ delta, const float* __restrict__ weight,
                          const float* __restrict__ bias, float eps, int32_t hidden, Out* out) {
  ptx::follow_previous_grid();
  __shared__ float partial_sums[kThreads / kWarp];
  const int64_t base = int64_t{blockIdx.x} * hidden;
  const int32_t first = static_cast<int32_t>(threadIdx.x) * kWidth, step = kThreads * kWidth;
  const auto size = static_cast<float>(hidden);
  float r[kWidth], w[kWidth], sum = 0;
  for (int32_t at = first; at < hidden; at += step) {
    load_floats(residual + base + at, r);
    if (delta != nullptr) {
      float d[kWidth];
      load_floats(delta + base + at, d);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) r[i] += d[i];
      store_floats(r, residual + base + at);
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum += r[i];
  }
  const float mean = block_sum(sum, partial_sums) / size;
  float squares = 0;
  for (int32_t at = first; at < hidden; at += step) {
    load_floats(residual + base + at, r);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) squares = fmaf(r[i] - mean, r[i] - mean, squares);
  }
  const float scale = 1.0f / sqrtf(block_sum(squares, partial_sums) / size + eps);
  for (int32_t at = first; at < hidden; at += step) {
    load_floats(residual + base + at, r);
    load_floats(weight + at, w);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) r[i] = (r[i] - mean) * scale * w[i];
    if (bias != nullptr) {
      load_floats(bias + at, w);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) r[i] += w[i];
    }
    store_floats(r, out + base + at);
  }
}

// kGroupThreads: of a group; a block has kThreads / kGroupThreads groups.
template <class T, int kWidth, int kGroupThreads>
__global__ void __launch_bounds__(kThreads)
    rms_norm_groups_kernel(T* __restrict__ x, int64_t stride, int64_t num_groups, const float* __restrict__ weight,
                           int32_t width, float eps, int64_t all_groups) {
  ptx::follow_previous_grid();
  __shared__ float partial_sums[kThreads / kWarp];
  const int64_t index = int64_t{blockIdx.x} * (kThreads / kGroupThreads) + threadIdx.x / kGroupThreads;
  if (index >= all_groups) return;  // whole warps; a block's where a group is a block's
  T* group = x + index / num_groups * stride + index % num_groups * width;
  const int32_t first = static_cast<int32_t>(threadIdx.x % kGroupThreads) * kWidth, step = kGroupThreads * kWidth;
  float v[kWidth], squares = 0;
  for (int32_t at = first; at < width; at += step) {
    load_floats(group + at, v);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) squares = fmaf(v[i], v[i], squares);
  }
  const float sum = kGroupThreads == kWarp ? warp_sum(squares) : block_sum(squares, partial_sums);
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(width) + eps);
  for (int32_t at = first; at < width; at += step) {
    float w[kWidth];
    load_floats(group + at, v);
    load_floats(weight + at, w);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) v[i] = v[i] * scale * w[i];
    store_floats(v, group + at);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    layer_norm_groups_kernel(T* __restrict__ x, int64_t stride, int64_t num_groups, const float* __restrict__ weight,
                             const float* __restrict__ bias, int32_t width, float eps, int64_t all_groups) {
  ptx::follow_previous_grid();
  const int64_t index = int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (index >= all_groups) return;  // whole warps
  const int64_t group = index % num_groups;
  T* const mine = x + index / num_groups * stride + group * width;
  const auto size = static_cast<float>(width);
  float sum = 0, squares = 0;
  for (int32_t at = threadIdx.x % kWarp; at < width; at += kWarp) sum += to_float(mine[at]);
  const float mean = warp_sum(sum) / size;
  for (int32_t at = threadIdx.x % kWarp; at < width; at += kWarp) {
    const float c = to_float(mine[at]) - mean;
    squares = fmaf(c, c, squares);
  }
  const float scale = 1.0f / sqrtf(warp_sum(squares) / size + eps);
  for (int32_t at = threadIdx.x % kWarp; at < width; at += kWarp) {
    const float y = (to_float(mine[at]) - mean) * scale * weight[group * width + at];
    mine[at] = from_float<T>(bias != nullptr ? y + bias[group * width + at] : y);
  }
}

template <class T, int kWidth>
void launch_groups(T* x, int64_t stride, int64_t num_groups, const float* weight, int64_t width, float eps,
                   int64_t rows, cudaStream_t stream) {
  const int64_t all = rows * num_groups;
  const auto run = [&](auto kernel, int groups_per_block) {
    launch_ahead({dim3(static_cast<unsigned>(ceil_div(all, groups_per_block))), dim3(kThreads), 0, stream}, kernel, x,
                 stride, num_groups, weight, static_cast<int32_t>(width), eps, all);
  };
  if (width <= kLongGroup) run(rms_norm_groups_kernel<T, kWidth, kWarp>, kThreads / kWarp);
  else run(rms_norm_groups_kernel<T, kWidth, kThreads>, 1);
}

}  // namespace

template <class T, class Out>
void add_layer_norm(float* residual, const T* delta, const float* weight, const float* bias, float eps, int64_t rows,
                    int64_t hidden, Out* out, cudaStream_t stream) {
  if (rows == 0) return;
  const auto run = [&](auto kernel) {
    launch_ahead({dim3(static_cast<unsigned>(rows)), dim3(kThreads), 0, stream}, kernel, residual, delta, weight, bias,
                 eps, static_cast<int32_t>(hidden), out);
  };
  if (can_pack(hidden, residual, delta, weight, bias, out)) run(add_layer_norm_kernel<T, Out, kPackWidth>);
  else run(add_layer_norm_kernel<T, Out, 1>);
}

template <class T>
void rms_norm_groups(T* x, int64_t stride, int64_t num_groups, const float* weight, int64_t width, float eps,
                     int64_t rows, cudaStream_t stream) {
  if (rows == 0 || num_groups == 0) return;
  if (can_pack(width, x, weight) && stride % kPackWidth == 0)
    launch_groups<T, kPackWidth>(x, stride, num_groups, weight, width, eps, rows, stream);
  else launch_groups<T, 1>(x, stride, num_groups, weight, width, eps, rows, stream);
}

template <class T>
void layer_norm_groups(T* x, int64_t stride, int64_t num_groups, const float* weight, const float* bias, int64_t width,
                       float eps, int64_t rows, cudaStream_t stream) {
  const int64_t all = rows * num_groups;
  if (all == 0) return;
  launch_ahead({dim3(static_cast<unsigned>(ceil_div(all, kThreads / kWarp))), dim3(kThreads), 0, stream},
               layer_norm_groups_kernel<T>, x, stride, num_groups, weight, bias, static_cast<int32_t>(width), eps, all);
}

template void add_layer_norm(float*, const float*, const float*, const float*, float, int64_t, int64_t, float*,
                             cudaStream_t);
template void add_layer_norm(float*, const __nv_bfloat16*, const float*, const float*, float, int64_t, int64_t,
                             __nv_bfloat16*, cudaStream_t);
template void add_layer_norm(float*, const __nv_bfloat16*, const float*, const float*, float, int64_t, int64_t, float*,
                             cudaStream_t);
template void add_layer_norm(float*, const __half*, const float*, const float*, float, int64_t, int64_t, __half*,
                             cudaStream_t);
template void add_layer_norm(float*, const __half*, const float*, const float*, float, int64_t, int64_t, float*,
                             cudaStream_t);
template void rms_norm_groups(float*, int64_t, int64_t, const float*, int64_t, float, int64_t, cudaStream_t);
template void rms_norm_groups(__nv_bfloat16*, int64_t, int64_t, const float*, int64_t, float, int64_t, cudaStream_t);
template void rms_norm_groups(__half*, int64_t, int64_t, const float*, int64_t, float, int64_t, cudaStream_t);
template void layer_norm_groups(float*, int64_t, int64_t, const float*, const float*, int64_t, float, int64_t,
                                cudaStream_t);
template void layer_norm_groups(__nv_bfloat16*, int64_t, int64_t, const float*, const float*, int64_t, float, int64_t,
                                cudaStream_t);
template void layer_norm_groups(__half*, int64_t, int64_t, const float*, const float*, int64_t, float, int64_t,
                                cudaStream_t);

}  // namespace llmb::cuda
