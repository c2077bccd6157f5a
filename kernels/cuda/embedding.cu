// Bound by bytes: each row is read once as T and written once as fp32. A thread moves one pack.
#include "kernels/cuda/embedding.h"

#include "kernels/cuda/device.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/quantize_rows.h"

namespace llmb::cuda {

namespace {

constexpr int kThreads = 128;

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    embedding_kernel(const T* __restrict__ table, const TokenId* __restrict__ tokens, int64_t hidden,
                     float* __restrict__ residual) {
  ptx::follow_previous_grid();
  const int64_t row = blockIdx.x, at = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kWidth;
  if (at >= hidden) return;
  float values[kWidth];
  load_floats(table + int64_t{tokens[row]} * hidden + at, values);
  store_floats(values, residual + row * hidden + at);
}

// A thread widens the eight numbers of one load, as far as the row goes.
__global__ void __launch_bounds__(kThreads)
    embedding_int8_kernel(const int8_t* __restrict__ table, const float* __restrict__ scales,
                          const TokenId* __restrict__ tokens, int64_t hidden, int64_t row_bytes,
                          float* __restrict__ residual) {
  ptx::follow_previous_grid();
  const int64_t row = blockIdx.x, at = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kPackWidth;
  if (at >= hidden) return;
  const int64_t token = tokens[row];
  const float scale = scales[token];
  const auto numbers = *reinterpret_cast<const Pack<int8_t, kPackWidth>*>(table + token * row_bytes + at);
#pragma unroll
  for (int i = 0; i < kPackWidth; ++i)
    if (at + i < hidden) residual[row * hidden + at + i] = static_cast<float>(numbers.values[i]) * scale;
}

template <class T, int kWidth>
void launch_rows(const T* table, const TokenId* tokens, int64_t rows, int64_t hidden, float* residual,
                 cudaStream_t stream) {
  const auto chunks = static_cast<unsigned>(ceil_div(hidden, kThreads * kWidth));
  launch_ahead({dim3(static_cast<unsigned>(rows), chunks), dim3(kThreads), 0, stream}, embedding_kernel<T, kWidth>,
               table, tokens, hidden, residual);
}

}  // namespace

template <class T>
void embedding(const T* table, const TokenId* tokens, int64_t rows, int64_t hidden, float* residual,
               cudaStream_t stream) {
  if (rows == 0) return;
  if (can_pack(hidden, table, residual)) launch_rows<T, kPackWidth>(table, tokens, rows, hidden, residual, stream);
  else launch_rows<T, 1>(table, tokens, rows, hidden, residual, stream);
}

void embedding_int8(const int8_t* table, const float* scales, const TokenId* tokens, int64_t rows, int64_t hidden,
                    float* residual, cudaStream_t stream) {
  if (rows == 0) return;
  const auto chunks = static_cast<unsigned>(ceil_div(hidden, kThreads * kPackWidth));
  launch_ahead({dim3(static_cast<unsigned>(rows), chunks), dim3(kThreads), 0, stream}, embedding_int8_kernel, table,
               scales, tokens, hidden, int8_row_bytes(hidden), residual);
}

template void embedding(const float*, const TokenId*, int64_t, int64_t, float*, cudaStream_t);
template void embedding(const __nv_bfloat16*, const TokenId*, int64_t, int64_t, float*, cudaStream_t);
template void embedding(const __half*, const TokenId*, int64_t, int64_t, float*, cudaStream_t);

}  // namespace llmb::cuda
