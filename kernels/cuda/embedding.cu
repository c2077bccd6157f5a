// Bound by bytes: each row is read once as T and written once as fp32. A thread moves one pack.
#include "kernels/cuda/embedding.h"

#include "kernels/cuda/device.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/ptx.h"

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

template <class T, int kWidth>
void launch_rows(const T* table, const TokenId* tokens, int64_t rows, int64_t hidden,
                 float* residual, cudaStream_t stream) {
  const auto chunks = static_cast<unsigned>(ceil_div(hidden, kThreads * kWidth));
  launch_ahead({dim3(static_cast<unsigned>(rows), chunks), dim3(kThreads), 0, stream}, embedding_kernel<T, kWidth>,
               table, tokens, hidden, residual);
}

}  // namespace

template <class T>
void embedding(const T* table, const TokenId* tokens, int64_t rows, int64_t hidden,
               float* residual, cudaStream_t stream) {
  if (rows == 0) return;
  if (can_pack(hidden, table, residual))
    launch_rows<T, kPackWidth>(table, tokens, rows, hidden, residual, stream);
  else launch_rows<T, 1>(table, tokens, rows, hidden, residual, stream);
}

template void embedding(const float*, const TokenId*, int64_t, int64_t, float*, cudaStream_t);
template void embedding(const __nv_bfloat16*, const TokenId*, int64_t, int64_t, float*, cudaStream_t);
template void embedding(const __half*, const TokenId*, int64_t, int64_t, float*, cudaStream_t);

}  // namespace llmb::cuda
