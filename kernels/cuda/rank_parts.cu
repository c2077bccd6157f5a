// Bound by bytes, which are few beside those of the products between the calls: sum_parts reads num_parts + 1 rows for
// each that is summed. A thread moves one pack of a sum, or one number; a norm's row is a warp's.
#include "kernels/cuda/rank_parts.h"

#include "kernels/cuda/device.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/warp.h"

namespace llmb::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kRowsPerBlock = 4;

constexpr int32_t kNone = -1;  // no part is in `out`

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    sum_parts_kernel(const T* __restrict__ parts, int32_t num_parts, int32_t own, int64_t count, T* out) {
  ptx::follow_previous_grid();
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kWidth;
  if (at >= count) return;
  const auto part_at = [&](int32_t p) { return (p == own ? out : parts + p * count) + at; };
  float sum[kWidth], part[kWidth];
  load_floats(part_at(0), sum);
  for (int32_t p = 1; p < num_parts; ++p) {
    load_floats(part_at(p), part);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum[i] += part[i];
  }
  store_floats(sum, out + at);
}

__global__ void __launch_bounds__(kThreads) own_tokens_kernel(const TokenId* __restrict__ tokens, int64_t begin,
                                                              int64_t count, int64_t rows, TokenId* __restrict__ out) {
  ptx::follow_previous_grid();
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= rows) return;
  const int64_t token = tokens[row] - begin;
  out[row] = token >= 0 && token < count ? static_cast<TokenId>(token) : 0;
}

// A block is a part of a row.
__global__ void __launch_bounds__(kThreads)
    clear_other_rows_kernel(const TokenId* __restrict__ tokens, int64_t begin, int64_t count, int64_t width,
                            float* __restrict__ x) {
  ptx::follow_previous_grid();
  const int64_t row = blockIdx.x, column = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  const int64_t token = tokens[row] - begin;
  if (column < width && (token < 0 || token >= count)) x[row * width + column] = 0;
}

template <class T>
__global__ void __launch_bounds__(kWarp* kRowsPerBlock)
    square_sums_kernel(const T* __restrict__ x, int64_t stride, int64_t width, int64_t rows, float* __restrict__ sums) {
  ptx::follow_previous_grid();
  const int64_t row = int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (row > rows) return;
  float sum = 0;
  if (row < rows)
    for (int64_t i = lane; i < width; i += kWarp) {
      const float value = to_float(x[row * stride + i]);
      sum = fmaf(value, value, sum);
    }
  sum = warp_sum(sum);
  if (lane == 0) sums[row] = row < rows ? sum : static_cast<float>(width);
}

template <class T>
__global__ void __launch_bounds__(kWarp* kRowsPerBlock)
    norm_by_sums_kernel(T* __restrict__ x, int64_t stride, int64_t width, int64_t rows, const float* __restrict__ sums,
                        int32_t num_parts, const float* __restrict__ weight, float eps) {
  ptx::follow_previous_grid();
  const int64_t row = int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / kWarp;
  if (row >= rows) return;
  float sum = 0, columns = 0;
  for (int32_t p = 0; p < num_parts; ++p) {
    sum += sums[p * (rows + 1) + row];
    columns += sums[p * (rows + 1) + rows];
  }
  const float scale = 1.0f / sqrtf(sum / columns + eps);
  for (int64_t i = threadIdx.x % kWarp; i < width; i += kWarp)
    x[row * stride + i] = from_float<T>(to_float(x[row * stride + i]) * scale * weight[i]);
}

LaunchShape blocks_of(int64_t items, int per_block, int threads, cudaStream_t stream) {
  return {dim3(static_cast<unsigned>(ceil_div(items, per_block))), dim3(static_cast<unsigned>(threads)), 0, stream};
}

}  // namespace

template <class T>
void sum_parts(const T* parts, int32_t num_parts, int64_t count, T* out, cudaStream_t stream) {
  sum_other_parts(parts, num_parts, kNone, count, out, stream);
}

template <class T>
void sum_other_parts(const T* parts, int32_t num_parts, int32_t own, int64_t count, T* x, cudaStream_t stream) {
  if (count == 0) return;
  const auto run = [&](auto kernel, int64_t threads) {
    launch_ahead(blocks_of(threads, kThreads, kThreads, stream), kernel, parts, num_parts, own, count, x);
  };
  if (can_pack(count, parts, x)) run(sum_parts_kernel<T, kPackWidth>, count / kPackWidth);
  else run(sum_parts_kernel<T, 1>, count);
}

void own_tokens(const TokenId* tokens, int64_t begin, int64_t count, int64_t rows, TokenId* out, cudaStream_t stream) {
  if (rows == 0) return;
  launch_ahead(blocks_of(rows, kThreads, kThreads, stream), own_tokens_kernel, tokens, begin, count, rows, out);
}

void clear_other_rows(const TokenId* tokens, int64_t begin, int64_t count, int64_t rows, int64_t width, float* x,
                      cudaStream_t stream) {
  if (rows == 0) return;
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(ceil_div(width, kThreads)));
  launch_ahead({grid, dim3(kThreads), 0, stream}, clear_other_rows_kernel, tokens, begin, count, width, x);
}

template <class T>
void square_sums(const T* x, int64_t stride, int64_t width, int64_t rows, float* sums, cudaStream_t stream) {
  launch_ahead(blocks_of(rows + 1, kRowsPerBlock, kWarp * kRowsPerBlock, stream), square_sums_kernel<T>, x, stride,
               width, rows, sums);
}

template <class T>
void norm_by_sums(T* x, int64_t stride, int64_t width, int64_t rows, const float* sums, int32_t num_parts,
                  const float* weight, float eps, cudaStream_t stream) {
  if (rows == 0) return;
  launch_ahead(blocks_of(rows, kRowsPerBlock, kWarp * kRowsPerBlock, stream), norm_by_sums_kernel<T>, x, stride, width,
               rows, sums, num_parts, weight, eps);
}

#define LLMB_INSTANTIATE(T)                                                                                        \
  template void sum_parts(const T*, int32_t, int64_t, T*, cudaStream_t);                                           \
  template void sum_other_parts(const T*, int32_t, int32_t, int64_t, T*, cudaStream_t);                            \
  template void square_sums(const T*, int64_t, int64_t, int64_t, float*, cudaStream_t);                            \
  template void norm_by_sums(T*, int64_t, int64_t, int64_t, const float*, int32_t, const float*, float, cudaStream_t)
LLMB_INSTANTIATE(float);
LLMB_INSTANTIATE(__nv_bfloat16);
LLMB_INSTANTIATE(__half);
#undef LLMB_INSTANTIATE

}  // namespace llmb::cuda
