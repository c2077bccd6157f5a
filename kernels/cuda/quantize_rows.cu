// Bound by bytes: a row is read from memory once, and a second time from a cache. A block is a row.
#include "kernels/cuda/quantize_rows.h"

#include "kernels/cuda/device.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/row_scale.h"
#include "kernels/cuda/widen_codes.h"

namespace llmb::cuda {

namespace {

template <class T, int kWidth>
__global__ void __launch_bounds__(kRowThreads)
    quantize_rows_kernel(const T* __restrict__ x, int64_t width, int64_t row_bytes, int8_t* __restrict__ out,
                         float* __restrict__ scales) {
  ptx::follow_previous_grid();
  __shared__ uint32_t partial[kRowThreads / kWarp];
  const T* const row = x + int64_t{blockIdx.x} * width;
  int8_t* const to = out + int64_t{blockIdx.x} * row_bytes;
  const RowScale scale = find_scale<kWidth>(row, width, 127, partial);
  if (threadIdx.x == 0) scales[blockIdx.x] = scale.scale;
  for (int64_t at = threadIdx.x * kWidth; at < row_bytes; at += kRowThreads * kWidth) {
    Pack<int8_t, kWidth> numbers{};
    if (at < width && scale.factor > 0) {
      float values[kWidth];
      load_floats(row + at, values);
#pragma unroll
      for (int i = 0; i < kWidth; ++i)
        numbers.values[i] = static_cast<int8_t>(__float2int_rn(__fmul_rn(values[i], scale.factor)));
    }
    *reinterpret_cast<Pack<int8_t, kWidth>*>(to + at) = numbers;
  }
}

// A thread makes 16 neighbouring bytes, of eight pairs of numbers.
template <class T, int kWidth>
__global__ void __launch_bounds__(kRowThreads)
    quantize_rows_fp8_kernel(const T* __restrict__ x, int64_t width, E4m3* __restrict__ out,
                             float* __restrict__ scales) {
  ptx::follow_previous_grid();
  constexpr int kBytes = 16;
  __shared__ uint32_t partial[kRowThreads / kWarp];
  const T* const row = x + int64_t{blockIdx.x} * width;
  const int64_t row_bytes = fp8::row_bytes(width);
  const RowScale scale = find_scale<kWidth>(row, width, kLargestE4m3, partial);
  if (threadIdx.x == 0) scales[blockIdx.x] = scale.scale;
  for (int64_t at = threadIdx.x * kBytes; at < row_bytes; at += kRowThreads * kBytes) {
    Pack<E4m3, kBytes> numbers{};
    const int64_t first = at / fp8::kGroup * fp8::kGroup;
    const int place = static_cast<int>(at % fp8::kGroup);
#pragma unroll
    for (int i = 0; i < kBytes; ++i) {
      if (i % 4 >= 2) continue;
      const int64_t k = first + fp8::number_at(place + i);
      float pair[2] = {};
      if constexpr (kWidth > 1) {
        if (k < width) load_floats(row + k, pair);
      } else {
        if (k < width) pair[0] = to_float(row[k]);
        if (k + 1 < width) pair[1] = to_float(row[k + 1]);
      }
      if (scale.factor == 0) continue;
      numbers.values[i] = to_e4m3(__fmul_rn(pair[0], scale.factor));
      numbers.values[i + 2] = to_e4m3(__fmul_rn(pair[1], scale.factor));
    }
    *reinterpret_cast<Pack<E4m3, kBytes>*>(out + int64_t{blockIdx.x} * row_bytes + at) = numbers;
  }
}

}  // namespace

template <class T>
void quantize_rows(const T* x, int64_t rows, int64_t width, int8_t* out, float* scales, cudaStream_t stream) {
  if (rows == 0) return;
  const auto kernel = can_pack(width, x) ? quantize_rows_kernel<T, kPackWidth> : quantize_rows_kernel<T, 1>;
  launch_ahead({dim3(static_cast<unsigned>(rows)), dim3(kRowThreads), 0, stream}, kernel, x, width, int8_row_bytes(width),
               out, scales);
}

template <class T>
void quantize_rows(const T* x, int64_t rows, int64_t width, E4m3* out, float* scales, cudaStream_t stream) {
  if (rows == 0) return;
  const auto kernel = can_pack(width, x) ? quantize_rows_fp8_kernel<T, kPackWidth> : quantize_rows_fp8_kernel<T, 1>;
  launch_ahead({dim3(static_cast<unsigned>(rows)), dim3(kRowThreads), 0, stream}, kernel, x, width, out, scales);
}

template void quantize_rows(const float*, int64_t, int64_t, int8_t*, float*, cudaStream_t);
template void quantize_rows(const __nv_bfloat16*, int64_t, int64_t, int8_t*, float*, cudaStream_t);
template void quantize_rows(const __half*, int64_t, int64_t, int8_t*, float*, cudaStream_t);
template void quantize_rows(const float*, int64_t, int64_t, E4m3*, float*, cudaStream_t);
template void quantize_rows(const __nv_bfloat16*, int64_t, int64_t, E4m3*, float*, cudaStream_t);
template void quantize_rows(const __half*, int64_t, int64_t, E4m3*, float*, cudaStream_t);

}  // namespace llmb::cuda
