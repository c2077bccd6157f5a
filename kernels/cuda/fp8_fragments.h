// Rows of e4m3 on their way to shared memory, and their numbers in registers. Device code only.
#pragma once

#include "kernels/cuda/code_tiles.h"
#include "kernels/cuda/fp8_rows.h"
#include "kernels/cuda/widen_codes.h"

namespace llmb::cuda::fp8 {

// As code_tiles.h wants them. A unit is [128 features] of 64 bytes.
struct Codes {
  static constexpr int kUnitK = code_tiles::kUnitK, kTileFeatures = code_tiles::kTileFeatures;
  static constexpr int kUnitBytes = kTileFeatures * kUnitK;
  static constexpr bool kHasRowScales = true;
  static_assert(kUnitK == kGroup);

  struct Source {
    const E4m3* weight;  // [out_features, num_steps · kUnitK]
    int64_t out_features;
  };
  static __device__ __forceinline__ Source source(const void* weight, int64_t out_features) {
    return {static_cast<const E4m3*>(weight), out_features};
  }

  // A thread brings 16 bytes of every kPassFeatures-th feature.
  template <int kUnits>
  class Loader {
   public:
    __device__ __forceinline__ Loader(const Source& source, int num_steps, int begin, int end)
        : row_bytes_(num_steps * kUnitK), units_left_(end - begin), steps_left_(num_steps - begin % num_steps) {
      const int feature = begin / num_steps * kTileFeatures + static_cast<int>(threadIdx.x) / kChunks;
      from_ = reinterpret_cast<const uint8_t*>(source.weight) + int64_t{feature} * row_bytes_ +
              begin % num_steps * kUnitK + static_cast<int>(threadIdx.x) % kChunks * 16;
      features_left_ = static_cast<int>(source.out_features) - feature;
    }

    __device__ __forceinline__ void load(uint8_t* stage) {
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        uint8_t* const to = stage + u * kUnitBytes + threadIdx.x * 16;
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
          const bool is_inside = units_left_ > u && features_left_ > pass * kPassFeatures;
          ptx::cp_async16(to + pass * kPassFeatures * kUnitK, from_ + int64_t{pass} * kPassFeatures * row_bytes_,
                          is_inside);
        }
        from_ += kUnitK;
        if (--steps_left_ > 0) continue;
        steps_left_ = row_bytes_ / kUnitK;
        from_ += int64_t{kTileFeatures - 1} * row_bytes_;
        features_left_ -= kTileFeatures;
      }
      units_left_ -= kUnits;
    }

   private:
    static constexpr int kChunks = kUnitK / 16, kPassFeatures = code_tiles::kThreads / kChunks;
    static constexpr int kPasses = kTileFeatures / kPassFeatures;

    const uint8_t* from_;  // this thread's first 16 bytes of the next unit, read where they are inside the matrix
    const int row_bytes_;
    int units_left_;     // of the block's
    int steps_left_;     // of the tile's
    int features_left_;  // from this thread's first one of the tile on
  };

  struct Places {
    __device__ __forceinline__ explicit Places(int sixteen)
        : codes((sixteen * 16 + static_cast<int>(threadIdx.x) % 32 / 4) * kUnitK +
                static_cast<int>(threadIdx.x) % 4 * 16) {}
    __device__ __forceinline__ void keep() { ptx::keep(codes); }
    int codes;
  };

  template <class T, class Use>
  static __device__ __forceinline__ void for_each_fragment(const uint8_t* unit, const Places& places, const Use& use) {
    const uint4 low = *reinterpret_cast<const uint4*>(unit + places.codes);
    const uint4 high = *reinterpret_cast<const uint4*>(unit + places.codes + 8 * kUnitK);
    const uint32_t low_words[4] = {low.x, low.y, low.z, low.w}, high_words[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const EvenOdd first = widen_four<T, E4m3>(low_words[k]), second = widen_four<T, E4m3>(high_words[k]);
      const uint32_t fragment[4] = {first.even, second.even, first.odd, second.odd};
      use(k, fragment);
    }
  }
};

}  // namespace llmb::cuda::fp8
