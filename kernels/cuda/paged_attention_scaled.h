// Keys and values as bytes with scales: tiles arrive as bytes, half as many as of T, and are widened. The numbers are
// exact in T, so products are of the stored numbers; scores are multiplied by the scale of their key, and numerators,
// before they are rounded to T, by that of their value.
#pragma once

#include "kernels/cuda/paged_attention_tiles.h"
#include "kernels/cuda/scaled_kv.h"
#include "kernels/cuda/widen_codes.h"

namespace llmb::cuda::attention {

// Whether keys and values of type KV are bytes with scales.
template <class KV>
constexpr bool kHasScales = kCodeOf<KV> != KvCode::kNone;

// Widens where it lies what this thread's copy_positions() of the same arguments has brought of bytes. REQUIRES: the
// copies have landed.
template <class T, class KV, int kDim, int kRows, int kCopiers, int kPools>
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
      const EvenOdd first = widen_four<T, KV>(bytes.x), second = widen_four<T, KV>(bytes.y);
      *reinterpret_cast<uint4*>(tiles[pool] + at) =
          make_uint4(__byte_perm(first.even, first.odd, 0x5410), __byte_perm(first.even, first.odd, 0x7632),
                     __byte_perm(second.even, second.odd, 0x5410), __byte_perm(second.even, second.odd, 0x7632));
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
