// How 2:4 sparse weights lie in device memory: of every four neighbours along k the two that are kept, packed for the
// tensor cores' sparse fragments, so that a thread reads 16 bytes and has its first operand of a product over 32 k.
// 9 bits a weight.
//
// A matrix is cut into units of 128 features by 64 k, [tile of features][step of k]. A unit holds
//   numbers [8][2][32] uint4   of 16 features and 32 k each, a lane's part of mma_sp_m16n8k32's first operand: number
//                              2 · (lane % 4) and the next of the 16 that are kept of feature lane / 4, the same of the
//                              feature 8 on, then both of number 8 on
//   places  [8][32] uint32     of 16 features each: lane l has those of k 16 · (l % 4) to 16 · (l % 4) + 15 of feature
//                              l / 4 in its low half and of the feature 8 on in its high one; four bits for every four
//                              k, from the lowest on: the first kept number's place, then the second's
// Units at the edges reach beyond the matrix; bytes there are kEmptyByte: places that are valid, and finite numbers,
// which meet zeros of x or are of features that nobody writes.
#pragma once

#include <cstdint>

#include "core/types.h"

namespace llmb::cuda {

namespace sparse24 {

constexpr int kTileFeatures = 128, kUnitK = 64;
constexpr int kNumberBytes = kTileFeatures * kUnitK / 2 * 2, kPlaceBytes = kTileFeatures * kUnitK / 8;
constexpr int kUnitBytes = kNumberBytes + kPlaceBytes;
constexpr int kEmptyByte = 0x44;  // places 0 and 1
constexpr int kBlock = 32;        // numbers of a row that are packed at a time

constexpr int64_t num_tiles(int64_t out_features) { return ceil_div(out_features, int64_t{kTileFeatures}); }
constexpr int64_t num_steps(int64_t in_features) { return ceil_div(in_features, int64_t{kUnitK}); }
constexpr int64_t bytes(int64_t out_features, int64_t in_features) {
  return num_tiles(out_features) * num_steps(in_features) * kUnitBytes;
}

// Bytes from a unit's begin to a lane's numbers and to its places.
constexpr int number_place(int sixteen, int half, int lane) { return ((sixteen * 2 + half) * 32 + lane) * 16; }
constexpr int places_place(int sixteen, int lane) { return kNumberBytes + (sixteen * 32 + lane) * 4; }

}  // namespace sparse24

// A weight matrix in device memory. Owns nothing.
struct Sparse24View {
  const uint8_t* units = nullptr;  // sparse24::bytes(), aligned to 16
  const void* bias = nullptr;      // [out_features] of T, or nullptr
  int64_t out_features = 0;
  int64_t in_features = 0;
};

}  // namespace llmb::cuda
