// Units of w4a8_units.h on their way to shared memory, and their products with rows of int8. Device code only.
#pragma once

#include "kernels/cuda/code_tiles.h"
#include "kernels/cuda/w4a8_units.h"

namespace llmb::cuda {

namespace w4a8 {

// As code_tiles.h wants them, but for fragments: Sums below has its own. Two k are an element of 16 bits (Int8Pair), so
// that a unit of 128 k has 64 of them.
struct Codes {
  static constexpr int kUnitBytes = w4a8::kUnitBytes;
  static constexpr bool kHasRowScales = false;
  static_assert(kUnitK == 2 * code_tiles::kUnitK && kTileFeatures == code_tiles::kTileFeatures);
  using Source = const uint8_t*;  // units
  template <int kUnits>
  using Loader = code_tiles::UnitLoader<kUnitBytes, kUnits>;
};

// Four codes in the low halves of a word's bytes as numbers. offset: 128 − zero, in each byte.
__device__ __forceinline__ uint32_t numbers_of(uint32_t codes, uint32_t scale, uint32_t offset) {
  return ((codes & 0x0f0f0f0fu) * scale + offset) ^ 0x80808080u;
}

// A lane's numbers of 16 features and 32 k, in the order of mma_m16n8k32_int8's first operand.
struct Fragment {
  uint32_t words[4];
  __device__ __forceinline__ Fragment(uint32_t first, uint32_t second, uint32_t scales) {
    const uint32_t low_scale = scales & 0xff, high_scale = scales >> 16 & 0xff;
    const uint32_t low_offset = __byte_perm(scales, 0, 0x1111), high_offset = __byte_perm(scales, 0, 0x3333);
    words[0] = numbers_of(first, low_scale, low_offset);
    words[1] = numbers_of(first >> 4, high_scale, high_offset);
    words[2] = numbers_of(second, low_scale, low_offset);
    words[3] = numbers_of(second >> 4, high_scale, high_offset);
  }
};

// The two of 64 k of a unit.
struct Fragments {
  Fragment first, second;
  __device__ __forceinline__ Fragments(const uint4& codes, const uint32_t (&scales)[2])
      : first(codes.x, codes.y, scales[0]), second(codes.z, codes.w, scales[1]) {}
};
__device__ __forceinline__ Fragments fragments_of(const uint8_t* unit, int sixteen, int half, int lane) {
  const uint32_t scales[2] = {*reinterpret_cast<const uint32_t*>(unit + scale_place(sixteen, 2 * half, lane)),
                              *reinterpret_cast<const uint32_t*>(unit + scale_place(sixteen, 2 * half + 1, lane))};
  return Fragments(*reinterpret_cast<const uint4*>(unit + code_place(sixteen, half, lane)), scales);
}

}  // namespace w4a8

namespace code_tiles {

// This thread's part of 128 features times kNumRows rows. Exact sums.
template <int kNumRows>
class Sums<mma_tiles::Int8Pair, Shape<kNumRows, w4a8::Codes>>
    : public WarpSums<int32_t, Shape<kNumRows, w4a8::Codes>::kRowTiles> {
  using S = Shape<kNumRows, w4a8::Codes>;
  using WarpSums<int32_t, S::kRowTiles>::value_;

 public:
  __device__ __forceinline__ Sums() {
    const int lane = threadIdx.x % 32, sixteen = static_cast<int>(threadIdx.x) / 32;
    codes_ = w4a8::code_place(sixteen, 0, lane);
    scales_ = w4a8::scale_place(sixteen, 0, lane);
    x_ = mma_tiles::element_of(lane % 8, lane / 8) * 2;
    ptx::keep(codes_);
    ptx::keep(scales_);
    ptx::keep(x_);
  }

  __device__ __forceinline__ void add_unit(const uint8_t* unit, const uint8_t* x_tile) {
    constexpr int kGroupScales = w4a8::scale_place(0, 1, 0) - w4a8::scale_place(0, 0, 0);
#pragma unroll(S::kRowTiles > 8 ? 1 : 2)  // registers lack for 128 rows
    for (int half = 0; half < 2; ++half) {
      const uint4 codes = *reinterpret_cast<const uint4*>(unit + codes_ + w4a8::code_place(0, half, 0));
      uint32_t scales[2];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        scales[i] = *reinterpret_cast<const uint32_t*>(unit + scales_ + (2 * half + i) * kGroupScales);
      const w4a8::Fragments numbers(codes, scales);
      // Four chunks of 16 bytes on, which element_of() has there.
      const uint8_t* const columns_of_half = x_tile + (x_ ^ (half * 4 * 16));
#pragma unroll
      for (int j = 0; j < S::kRowTiles; ++j) {
        uint32_t columns[4];
        ptx::ldmatrix_x4(columns, columns_of_half + j * (8 * kUnitK * 2));
        const uint32_t first[2] = {columns[0], columns[1]}, second[2] = {columns[2], columns[3]};
        ptx::mma_m16n8k32_int8(value_[j], numbers.first.words, first);
        ptx::mma_m16n8k32_int8(value_[j], numbers.second.words, second);
      }
    }
  }

 private:
  int codes_, scales_, x_;  // bytes from the begin of a unit, and of a tile of x, to what this lane reads
};

}  // namespace code_tiles

}  // namespace llmb::cuda
