// How weights of w4a8 lie in device memory: whole numbers within ±127, code · scale − zero, of four bits each and a scale
// and a zero for 32 neighbours along k (kernels/cpu/quantize.h), packed for the tensor cores' fragments of int8. 4.5 bits
// a weight.
//
// A matrix is cut into units of 128 features by 128 k, [tile of features][step of k]. A unit holds
//   codes  [8][2][32] uint4  of 16 features and 64 k each: two words for each 32 k, a lane's part of mma_m16n8k32_int8's
//                            first operand. Byte j of the first one has number 4 · (lane % 4) + j of feature lane / 4 in
//                            its low half and of the feature 8 on in its high one; the second word those of 16 k on
//   scales [4][8][8][2] × 2  of 32 k each: of features i and i + 8 of 16 the scale, 1 to 16, and 128 − zero, a byte each
// A code times its scale and 128 − zero is a byte, the number with its sign bit turned: none of four in a word carries
// into the next one. Units at the edges reach beyond the matrix; what is there meets zeros of x, or is of features that
// nobody writes.
#pragma once

#include <cstdint>

#include "core/types.h"

namespace llmb::cuda {

namespace w4a8 {

constexpr int kTileFeatures = 128, kUnitK = 128, kGroup = 32;
constexpr int kCodeBytes = kTileFeatures * kUnitK / 2, kScaleBytes = kTileFeatures * (kUnitK / kGroup) * 2;
constexpr int kUnitBytes = kCodeBytes + kScaleBytes;

constexpr int64_t num_tiles(int64_t out_features) { return ceil_div(out_features, int64_t{kTileFeatures}); }
constexpr int64_t num_steps(int64_t in_features) { return ceil_div(in_features, int64_t{kUnitK}); }
constexpr int64_t bytes(int64_t out_features, int64_t in_features) {
  return num_tiles(out_features) * num_steps(in_features) * kUnitBytes;
}

// Bytes from a unit's begin to a lane's codes of 64 k, and to its scales of 32 k.
constexpr int code_place(int sixteen, int half, int lane) { return ((sixteen * 2 + half) * 32 + lane) * 16; }
constexpr int scale_place(int sixteen, int group, int lane) {
  return kCodeBytes + ((group * 8 + sixteen) * 8 + lane / 4) * 4;
}

}  // namespace w4a8

// A weight matrix in device memory. Owns nothing.
struct W4A8View {
  const uint8_t* units = nullptr;  // w4a8::bytes(), aligned to 16
  const float* scales = nullptr;   // [out_features]
  const float* bias = nullptr;     // [out_features], or nullptr
  int64_t out_features = 0;
  int64_t in_features = 0;
};

}  // namespace llmb::cuda
