// Bound by bytes: each row is read once as T, the residual read and written. A thread moves one pack.
#include "kernels/cuda/add_embedding.h"

#include "core/types.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/ptx.h"

namespace llmb::cuda {

namespace {

constexpr int kThreads = 128;

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    add_embedding_kernel(const T* __restrict__ table, const int32_t* __restrict__ rows, int64_t hidden,
                         float* __restrict__ residual) {
  ptx::follow_previous_grid();
  const int64_t row = blockIdx.x, at = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kWidth;
  if (at >= hidden) return;
  float values[kWidth], sum[kWidth];
  load_floats(table + int64_t{rows[row]} * hidden + at, values);
  load_floats(residual + row * hidden + at, sum);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sum[i] += values[i];
  store_floats(sum, residual + row * hidden + at);
}

}  // namespace

template <class T>
void add_embedding(const T* table, const int32_t* rows, int64_t num_rows, int64_t hidden, float* residual,
                   cudaStream_t stream) {
  if (num_rows == 0) return;
  const auto start = [&](auto kernel, int width) {
    const auto chunks = static_cast<unsigned>(ceil_div(hidden, int64_t{kThreads} * width));
    launch_ahead({dim3(static_cast<unsigned>(num_rows), chunks), dim3(kThreads), 0, stream}, kernel, table, rows,
                 hidden, residual);
  };
  if (can_pack(hidden, table, residual)) start(add_embedding_kernel<T, kPackWidth>, kPackWidth);
  else start(add_embedding_kernel<T, 1>, 1);
}

template void add_embedding(const float*, const int32_t*, int64_t, int64_t, float*, cudaStream_t);
template void add_embedding(const __nv_bfloat16*, const int32_t*, int64_t, int64_t, float*, cudaStream_t);
template void add_embedding(const __half*, const int32_t*, int64_t, int64_t, float*, cudaStream_t);

}  // namespace llmb::cuda
