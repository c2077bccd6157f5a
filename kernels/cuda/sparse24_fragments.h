// 2:4 sparse units on their way to shared memory, and their products with rows of x. Device code only.
#pragma once

#include "kernels/cuda/code_tiles.h"
#include "kernels/cuda/ptx_sparse.h"
#include "kernels/cuda/sparse24_units.h"

namespace llmb::cuda {

namespace sparse24 {

// As code_tiles.h wants them, but for fragments: Sums below has its own.
struct Codes {
  static constexpr int kUnitBytes = sparse24::kUnitBytes;
  static constexpr bool kHasRowScales = false;
  static_assert(kUnitK == code_tiles::kUnitK && kTileFeatures == code_tiles::kTileFeatures);
  using Source = const uint8_t*;  // units
  template <int kUnits>
  using Loader = code_tiles::UnitLoader<kUnitBytes, kUnits>;
};

}  // namespace sparse24

namespace code_tiles {

// This thread's part of 128 features times kNumRows rows. A warp has 16 features and all rows; from 64 rows on 32
// features and half of the rows, so that eight warps read 512 bytes of shared memory for each row and 64 k, not 1,024.
// Every output is one chain of products of 32 k, whatever the rows.
template <class T, int kNumRows>
class Sums<T, Shape<kNumRows, sparse24::Codes>> {
  using S = Shape<kNumRows, sparse24::Codes>;
  static constexpr int kSixteens = kNumRows >= 64 ? 2 : 1;  // of features, of a warp; as many share the rows out
  static constexpr int kTiles = S::kRowTiles / kSixteens;   // of 8 rows, of a warp
  static constexpr int kWarps = kThreads / 32;

 public:
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (auto& tiles : value_)
#pragma unroll
      for (auto& tile : tiles)
#pragma unroll
        for (float& sum : tile) sum = 0;
  }

  __device__ __forceinline__ Sums() {
    const int lane = threadIdx.x % 32;
    numbers_ = sparse24::number_place(first_sixteen(), 0, lane);
    kept_ = sparse24::places_place(first_sixteen(), lane);
    x_ = mma_tiles::element_of(first_row() + lane % 8, lane / 8) * int{sizeof(T)};
    ptx::keep(x_);
    ptx::keep(numbers_);
    ptx::keep(kept_);
    clear();
  }

  __device__ __forceinline__ void add_unit(const uint8_t* unit, const uint8_t* x_tile) {
    uint32_t kept[kSixteens];
#pragma unroll
    for (int s = 0; s < kSixteens; ++s)
      kept[s] = *reinterpret_cast<const uint32_t*>(unit + kept_ + s * (32 * int{sizeof(uint32_t)}));
    add_half<0>(unit, x_tile, kept);
    add_half<1>(unit, x_tile, kept);
  }

  // As the other Sums have them.
  template <class Write>
  __device__ __forceinline__ void for_each(const Write& write) const {
    const int feature = first_sixteen() * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      int first = row(j);
      ptx::keep(first);  // else all rows' places are reckoned first, for which registers lack
#pragma unroll
      for (int e = 0; e < 2; ++e)
#pragma unroll
        for (int s = 0; s < kSixteens; ++s)
#pragma unroll
          for (int half = 0; half < 2; ++half)
            write(first + e, feature + 16 * s + 8 * half, value_[s][j][2 * half + e]);
    }
  }
  __device__ __forceinline__ float (&of(int j))[4] { return value_[j / kTiles][j % kTiles]; }
  static __device__ __forceinline__ int row(int j) {
    return first_row() + j % kTiles * 8 + static_cast<int>(threadIdx.x) % 4 * 2;
  }

 private:
  // Where this thread's warp begins.
  static __device__ __forceinline__ int first_sixteen() {
    return static_cast<int>(threadIdx.x) / 32 % (kWarps / kSixteens) * kSixteens;
  }
  static __device__ __forceinline__ int first_row() {
    return static_cast<int>(threadIdx.x) / 32 / (kWarps / kSixteens) * (kTiles * 8);
  }

  // 32 of the unit's k.
  template <int kHalf>
  __device__ __forceinline__ void add_half(const uint8_t* unit, const uint8_t* x_tile,
                                           const uint32_t (&kept)[kSixteens]) {
    uint32_t numbers[kSixteens][4];
#pragma unroll
    for (int s = 0; s < kSixteens; ++s) {
      const uint4 words = *reinterpret_cast<const uint4*>(unit + numbers_ + sparse24::number_place(s, kHalf, 0));
      numbers[s][0] = words.x, numbers[s][1] = words.y, numbers[s][2] = words.z, numbers[s][3] = words.w;
    }
    // Four chunks of 16 bytes on, which element_of() has there.
    const uint8_t* const columns_of_half = x_tile + (x_ ^ (kHalf * 4 * 16));
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      uint32_t columns[4];
      ptx::ldmatrix_x4(columns, columns_of_half + j * (8 * kUnitK * int{sizeof(T)}));
#pragma unroll
      for (int s = 0; s < kSixteens; ++s) ptx::mma_sp_m16n8k32<T, kHalf>(value_[s][j], numbers[s], columns, kept[s]);
    }
  }

  // Bytes from the begin of a unit, and of a tile of x, to what this lane reads.
  int numbers_, kept_, x_;
  float value_[kSixteens][kTiles][4];
};

}  // namespace code_tiles

}  // namespace llmb::cuda
