// Keys and values as int8: tiles arrive as bytes, half as many as of T, and every thread widens what it copied itself
// where it lies. The numbers are exact in T, so products are of the stored integers; scores are multiplied by the scale
// of their key, and numerators, before they are rounded to T, by that of their value.
#pragma once

#include <type_traits>

#include "kernels/cuda/paged_attention_tiles.h"

namespace llmb::cuda::attention {

// Whether keys and values of type KV have scales.
template <class KV>
constexpr bool kHasScales = std::is_same_v<KV, int8_t>;

// Four numbers as two pairs of T. Bytes without their sign become the lowest bits of floats from 2^23 on.
template <class T>
__device__ __forceinline__ void widen_four(uint32_t bytes, uint32_t* pairs) {
  const uint32_t raised = bytes ^ 0x80808080u;
  float x[4];
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i)
    x[i] = __uint_as_float(__byte_perm(raised, 0x4B000000u, 0x7440u + i)) - (8388608.0f + 128.0f);
  pairs[0] = pack_two(x[0], x[1], T());
  pairs[1] = pack_two(x[2], x[3], T());
}

// Widens what copy_positions() of the same arguments has brought of int8. REQUIRES: this thread's copies have landed.
template <class T, int kDim, int kRows, int kCopiers, int kPools>
__device__ void widen_positions(int copier, T* const (&tiles)[kPools]) {
  using Plan = CopyPlan<kDim, kRows, kCopiers>;
  const int first_row = copier / Plan::kLanes, chunk = copier % Plan::kLanes;
  const int to = Tile<kDim>::offset(first_row, chunk);
  if (Tile<kDim>::kChunks != Plan::kLanes && chunk >= Tile<kDim>::kChunks) return;
#pragma unroll
  for (int step = 0; step < Plan::kSteps; ++step) {
    const int row = step * Plan::kStepRows;
    const int at = (to ^ Tile<kDim>::swizzle(row) * 8) + row * kDim;
#pragma unroll
    for (int pool = 0; pool < kPools; ++pool) {
      const uint2 bytes = *reinterpret_cast<const uint2*>(tiles[pool] + at);
      uint32_t pairs[4];
      widen_four<T>(bytes.x, pairs);
      widen_four<T>(bytes.y, pairs + 2);
      *reinterpret_cast<uint4*>(tiles[pool] + at) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
  }
}

// Multiplies scores or numerators by the scales of their columns. `scales`: of the tile's first column.
template <int kBlocks>
__device__ __forceinline__ void scale_columns(const float* scales, float (&s)[kBlocks][4]) {
  const float* const own = scales + threadIdx.x % 4 * 2;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const float2 pair = *reinterpret_cast<const float2*>(own + 8 * b);
#pragma unroll
    for (int e = 0; e < 4; ++e) s[b][e] *= e % 2 == 0 ? pair.x : pair.y;
  }
}

}  // namespace llmb::cuda::attention
