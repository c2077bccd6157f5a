// Keys and values as int8: tiles arrive as bytes, half as many as of T, and are widened. The numbers are exact in T, so
// products are of the stored integers; scores are multiplied by the scale of their key, and numerators, before they are
// rounded to T, by that of their value.
#pragma once

#include <type_traits>

#include "kernels/cuda/paged_attention_tiles.h"

namespace llmb::cuda::attention {

// Whether keys and values of type KV have scales.
template <class KV>
constexpr bool kHasScales = std::is_same_v<KV, int8_t>;

// Numbers of T.
struct EvenOdd {
  uint32_t even, odd;  // of bytes 0 and 2, and 1 and 3
};

// The four bytes of a word as numbers of T, exactly: as the lowest bits of numbers whose last bit is worth 1.
template <class T>
__device__ __forceinline__ EvenOdd widen_four(uint32_t bytes) {
  if constexpr (std::is_same_v<T, __half>) {  // without its sign, from 1024 on
    const auto widen = [&](uint32_t selector) {
      const uint32_t number = __byte_perm(bytes ^ 0x80808080u, 0x64646464u, selector), base = 0x64806480u;
      return bits_of(__hsub2(reinterpret_cast<const __half2&>(number), reinterpret_cast<const __half2&>(base)));
    };
    return {widen(0x4240), widen(0x4341)};
  } else {  // seven bits from 128 on; where the sign is set, 128 more are taken from it
    const auto widen = [](uint32_t two) {
      const uint32_t number = ptx::and_or(two, 0x007F007Fu, 0x43004300u);
      const uint32_t base = ptx::and_or(two, 0x00800080u, 0x43004300u);
      return bits_of(
          __hsub2(reinterpret_cast<const __nv_bfloat162&>(number), reinterpret_cast<const __nv_bfloat162&>(base)));
    };
    return {widen(bytes), widen(bytes >> 8)};
  }
}

// Widens where it lies what this thread's copy_positions() of the same arguments has brought of int8. REQUIRES: the
// copies have landed.
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
      const EvenOdd first = widen_four<T>(bytes.x), second = widen_four<T>(bytes.y);
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
