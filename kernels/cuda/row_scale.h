// The scale that a row's numbers are rounded by to codes of few bits. Device code only.
#pragma once

#include <cstdint>

#include "kernels/cuda/pack.h"
#include "kernels/cuda/warp.h"

namespace llmb::cuda {

constexpr int kRowThreads = 256;  // of a block, which has a row

// Without the sign, bits are in the order of magnitudes, and those of infinity and NaN are the largest.
__device__ __forceinline__ uint32_t magnitude_bits(float x) { return __float_as_uint(x) & 0x7fffffffu; }

__device__ inline uint32_t block_max(uint32_t x, uint32_t* partial) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x = max(x, __shfl_xor_sync(kAllLanes, x, offset));
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = x;
  __syncthreads();
  for (int w = 0; w < kRowThreads / kWarp; ++w) x = max(x, partial[w]);
  return x;
}

struct RowScale {
  float scale, factor;  // factor 0: all numbers are 0
};

// The scale of a block's row, for codes up to `largest_code`. partial: [kRowThreads / kWarp] in shared memory
template <int kWidth, class T>
__device__ RowScale find_scale(const T* row, int64_t width, float largest_code, uint32_t* partial) {
  float values[kWidth];
  uint32_t largest = 0;
  for (int64_t at = threadIdx.x * kWidth; at < width; at += kRowThreads * kWidth) {
    load_floats(row + at, values);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) largest = max(largest, magnitude_bits(values[i]));
  }
  const float max = __uint_as_float(block_max(largest, partial));
  const bool is_finite = max < INFINITY;
  const float inverse = is_finite && max > 0 ? __fdiv_rn(largest_code, max) : 0.0f;
  return {is_finite ? __fdiv_rn(max, largest_code) : NAN, inverse < INFINITY ? inverse : 0.0f};
}

}  // namespace llmb::cuda
