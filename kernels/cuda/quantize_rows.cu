// Bound by bytes: a row is read from memory once, and a second time from a cache. A block is a row.
#include "kernels/cuda/quantize_rows.h"

#include "kernels/cuda/device.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/warp.h"

namespace llmb::cuda {

namespace {

constexpr int kThreads = 256;

// Without the sign, bits are in the order of magnitudes, and those of infinity and NaN are the largest.
__device__ __forceinline__ uint32_t magnitude_bits(float x) { return __float_as_uint(x) & 0x7fffffffu; }

__device__ uint32_t block_max(uint32_t x, uint32_t* partial) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x = max(x, __shfl_xor_sync(kAllLanes, x, offset));
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = x;
  __syncthreads();
  for (int w = 0; w < kThreads / kWarp; ++w) x = max(x, partial[w]);
  return x;
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    quantize_rows_kernel(const T* __restrict__ x, int64_t width, int64_t row_bytes, int8_t* __restrict__ out,
                         float* __restrict__ scales) {
  ptx::follow_previous_grid();
  __shared__ uint32_t partial[kThreads / kWarp];
  const T* const row = x + int64_t{blockIdx.x} * width;
  int8_t* const to = out + int64_t{blockIdx.x} * row_bytes;
  float values[kWidth];
  uint32_t largest = 0;
  for (int64_t at = threadIdx.x * kWidth; at < width; at += kThreads * kWidth) {
    load_floats(row + at, values);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) largest = max(largest, magnitude_bits(values[i]));
  }
  const float max = __uint_as_float(block_max(largest, partial));
  const bool is_finite = max < INFINITY;
  const float inverse = is_finite && max > 0 ? __fdiv_rn(127.0f, max) : 0.0f;
  const float factor = inverse < INFINITY ? inverse : 0.0f;
  if (threadIdx.x == 0) scales[blockIdx.x] = is_finite ? __fdiv_rn(max, 127.0f) : NAN;
  for (int64_t at = threadIdx.x * kWidth; at < row_bytes; at += kThreads * kWidth) {
    Pack<int8_t, kWidth> numbers{};
    if (at < width && factor > 0) {
      load_floats(row + at, values);
#pragma unroll
      for (int i = 0; i < kWidth; ++i)
        numbers.values[i] = static_cast<int8_t>(__float2int_rn(__fmul_rn(values[i], factor)));
    }
    *reinterpret_cast<Pack<int8_t, kWidth>*>(to + at) = numbers;
  }
}

}  // namespace

template <class T>
void quantize_rows(const T* x, int64_t rows, int64_t width, int8_t* out, float* scales, cudaStream_t stream) {
  if (rows == 0) return;
  const auto kernel = can_pack(width, x) ? quantize_rows_kernel<T, kPackWidth> : quantize_rows_kernel<T, 1>;
  launch_ahead({dim3(static_cast<unsigned>(rows)), dim3(kThreads), 0, stream}, kernel, x, width, int8_row_bytes(width),
               out, scales);
}

template void quantize_rows(const float*, int64_t, int64_t, int8_t*, float*, cudaStream_t);
template void quantize_rows(const __nv_bfloat16*, int64_t, int64_t, int8_t*, float*, cudaStream_t);
template void quantize_rows(const __half*, int64_t, int64_t, int8_t*, float*, cudaStream_t);

}  // namespace llmb::cuda
