// Options of the launches of linear_codes.h, and the memory that they share.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/types.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/tuning.h"

namespace llmb::cuda {

// That decide how work is cut up.
struct LinearCodesOptions {
  int32_t num_sms = 1;
  int32_t blocks_per_sm = tuning::kInt4BlocksPerSm;  // decides bits
  int32_t ring_bytes = tuning::kInt4RingBytes;       // of units and x under way, at most, in a block
};

namespace code_tiles {

constexpr int kTileFeatures = 128, kUnitK = 64;
constexpr int kMaxRows = 128;     // of a launch
constexpr int kMinUnits = 2;      // of a block
constexpr int kMaxTiles = 16384;  // one counter each

constexpr int64_t num_tiles(int64_t out_features) { return ceil_div(out_features, int64_t{kTileFeatures}); }
constexpr int64_t num_steps(int64_t in_features) { return ceil_div(in_features, int64_t{kUnitK}); }

// Memory that launches on one stream share.
struct Workspace {
  Workspace(const LinearCodesOptions& options, cudaStream_t stream)
      : partials(int64_t{2} * options.num_sms * options.blocks_per_sm * int64_t{kTileFeatures} * kMaxRows *
                 int64_t{sizeof(float)}),
        counters(kMaxTiles * int64_t{sizeof(int32_t)}) {
    check(cudaMemsetAsync(counters.data(), 0, counters.bytes(), stream), "cudaMemsetAsync");
  }
  DeviceMemory partials, counters;
};

}  // namespace code_tiles

}  // namespace llmb::cuda
