// The common work of a block of threads in sample: scans in a fixed order, and the search of sums for a border.
// Internal to sample; device code only. Every thread of the block calls.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.h"
#include "kernels/cuda/sample_state.h"

namespace llmb::cuda {

// In shared memory.
struct BlockScratch {
  double warp_sums[32];
  double before;
  double total;
  int32_t first;
  int32_t last;
};

// The sum of the values of all threads before this one, in a fixed order. `total`: of all threads.
__device__ inline double block_exclusive_sum(double value, BlockScratch* s, double* total) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, num_warps = blockDim.x / kWarp;
  double inclusive = value;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const double other = __shfl_up_sync(kAllLanes, inclusive, offset);
    if (lane >= offset) inclusive += other;
  }
  if (lane == kWarp - 1) s->warp_sums[warp] = inclusive;
  const double before_lane = __shfl_up_sync(kAllLanes, inclusive, 1);
  __syncthreads();
  double before = 0, all = 0;
  for (int w = 0; w < num_warps; ++w) {
    if (w == warp) before = all;
    all += s->warp_sums[w];
  }
  *total = all;
  __syncthreads();  // the scratch may be used again
  return lane == 0 ? before : before + before_lane;
}

// Where sums reach a border: the sum of the positions before it is below, with its own it is reached.
struct Crossing {
  int32_t position;  // -1: no position has a positive measure
  double before;     // the sum of the positions before
};

// The first position of [0, n) at which `start` and the sum of measures up to it satisfy `reached`; the last one of
// positive measure where rounding keeps all from it. `measure(i)` >= 0; only positive ones can be the crossing.
template <class Measure, class Reached>
__device__ Crossing find_crossing(int32_t n, double start, const Measure& measure, const Reached& reached,
                                  BlockScratch* s) {
  const int32_t per_thread = (n + static_cast<int32_t>(blockDim.x) - 1) / static_cast<int32_t>(blockDim.x);
  const int32_t begin = min(n, static_cast<int32_t>(threadIdx.x) * per_thread), end = min(n, begin + per_thread);
  double own = 0, total;
  for (int32_t i = begin; i < end; ++i) own += measure(i);
  const double before_own = start + block_exclusive_sum(own, s, &total);
  if (threadIdx.x == 0) s->first = kMaxId, s->last = -1;
  __syncthreads();
  double sum = before_own, before_first = 0, before_last = 0;
  int32_t first = kMaxId, last = -1;
  for (int32_t i = begin; i < end; ++i) {
    const double m = measure(i);
    if (!(m > 0)) continue;
    last = i, before_last = sum;
    sum += m;
    if (first == kMaxId && reached(sum)) first = i, before_first = before_last;
  }
  if (first != kMaxId) atomicMin(&s->first, first);
  if (last >= 0) atomicMax(&s->last, last);
  __syncthreads();
  const int32_t position = s->first != kMaxId ? s->first : s->last;
  if (position >= 0 && position == first) s->before = before_first;
  else if (position >= 0 && position == last) s->before = before_last;
  __syncthreads();
  const Crossing crossing{position, s->before};
  __syncthreads();
  return crossing;
}

// Sorts keys [0, n) upwards, n <= capacity; keys up to the next power of two are overwritten. REQUIRES: the capacity is
// a power of two, and keys are visible to the block.
__device__ inline void block_sort(uint64_t* keys, int32_t n) {
  int32_t padded = 1;
  while (padded < n) padded *= 2;
  for (int32_t i = n + threadIdx.x; i < padded; i += blockDim.x) keys[i] = ~uint64_t{0};
  __syncthreads();
  for (int32_t run = 2; run <= padded; run *= 2) {
    for (int32_t step = run / 2; step > 0; step /= 2) {
      for (int32_t pair = threadIdx.x; pair < padded / 2; pair += blockDim.x) {
        const int32_t i = 2 * pair - (pair & (step - 1)), j = i + step;
        const uint64_t a = keys[i], b = keys[j];
        if ((a > b) == ((i & run) == 0)) keys[i] = b, keys[j] = a;
      }
      __syncthreads();
    }
  }
}

}  // namespace llmb::cuda
