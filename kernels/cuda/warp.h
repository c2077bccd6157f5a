// The lanes of a warp together. Device code only.
#pragma once

#include "kernels/cuda/device.h"

namespace llmb::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// The sum over all lanes, the same bits in each.
template <class T>
__device__ __forceinline__ T warp_sum(T x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}

}  // namespace llmb::cuda
