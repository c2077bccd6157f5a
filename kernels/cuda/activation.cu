// Bound by bytes: 6 for each bf16 output. A thread computes one pack.
#include "kernels/cuda/activation.h"

#include <type_traits>

#include "core/types.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/ptx.h"

namespace llmb::cuda {

namespace {

constexpr int kThreads = 256;

// The fast forms are good to about 2^-20, far below a 16-bit rounding; with the exact ones arithmetic would bind.
template <class T>
__device__ float silu(float x) {
  if constexpr (std::is_same_v<T, float>) return x / (1.0f + expf(-x));
  return __fdividef(x, 1.0f + __expf(-x));
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    silu_mul_kernel(const T* __restrict__ gate_up, int64_t intermediate, T* __restrict__ out) {
  ptx::follow_previous_grid();
  const int64_t row = blockIdx.x, at = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kWidth;
  if (at >= intermediate) return;
  const T* gate_at = gate_up + row * 2 * intermediate + at;
  float gate[kWidth], up[kWidth];
  load_floats(gate_at, gate);
  load_floats(gate_at + intermediate, up);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) up[i] *= silu<T>(gate[i]);
  store_floats(up, out + row * intermediate + at);
}

template <class T, int kWidth>
void launch_rows(const T* gate_up, int64_t rows, int64_t intermediate, T* out, cudaStream_t stream) {
  const auto chunks = static_cast<unsigned>(ceil_div(intermediate, kThreads * kWidth));
  launch_ahead({dim3(static_cast<unsigned>(rows), chunks), dim3(kThreads), 0, stream}, silu_mul_kernel<T, kWidth>,
               gate_up, intermediate, out);
}

}  // namespace

template <class T>
void silu_mul(const T* gate_up, int64_t rows, int64_t intermediate, T* out, cudaStream_t stream) {
  if (rows == 0) return;
  if (can_pack(intermediate, gate_up, out)) launch_rows<T, kPackWidth>(gate_up, rows, intermediate, out, stream);
  else launch_rows<T, 1>(gate_up, rows, intermediate, out, stream);
}

template void silu_mul(const float*, int64_t, int64_t, float*, cudaStream_t);
template void silu_mul(const __nv_bfloat16*, int64_t, int64_t, __nv_bfloat16*, cudaStream_t);
template void silu_mul(const __half*, int64_t, int64_t, __half*, cudaStream_t);

}  // namespace llmb::cuda
