// Bound by bytes: each row is read once and written once. A thread moves one pack.
#include "kernels/cuda/gather.h"

#include "core/types.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/ptx.h"

namespace llmb::cuda {

namespace {

constexpr int kThreads = 128;

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    gather_rows_kernel(const T* __restrict__ x, const int32_t* __restrict__ rows, int64_t width, T* __restrict__ out) {
  ptx::follow_previous_grid();
  const int64_t row = blockIdx.x, at = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kWidth;
  if (at >= width) return;
  const int64_t from = rows[row];
  if (from >= 0) return copy_pack<kWidth>(x + from * width + at, out + row * width + at);
  const float zeros[kWidth] = {};
  store_floats(zeros, out + row * width + at);
}

template <class T, int kWidth>
void launch_rows(const T* x, const int32_t* rows, int64_t num_rows, int64_t width, T* out, cudaStream_t stream) {
  const auto chunks = static_cast<unsigned>(ceil_div(width, kThreads * kWidth));
  launch_ahead({dim3(static_cast<unsigned>(num_rows), chunks), dim3(kThreads), 0, stream},
               gather_rows_kernel<T, kWidth>, x, rows, width, out);
}

}  // namespace

template <class T>
void gather_rows(const T* x, const int32_t* rows, int64_t num_rows, int64_t width, T* out, cudaStream_t stream) {
  if (num_rows == 0) return;
  if (can_pack(width, x, out)) launch_rows<T, kPackWidth>(x, rows, num_rows, width, out, stream);
  else launch_rows<T, 1>(x, rows, num_rows, width, out, stream);
}

template void gather_rows(const float*, const int32_t*, int64_t, int64_t, float*, cudaStream_t);
template void gather_rows(const __nv_bfloat16*, const int32_t*, int64_t, int64_t, __nv_bfloat16*, cudaStream_t);
template void gather_rows(const __half*, const int32_t*, int64_t, int64_t, __half*, cudaStream_t);

}  // namespace llmb::cuda
