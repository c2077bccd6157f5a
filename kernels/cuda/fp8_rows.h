// How e4m3 weights, and rows of x beside them, lie in device memory: rows of bytes with a scale each, as
// quantize_rows.h makes them, in which every 64 numbers are in the order in which a lane needs them for the tensor
// cores' fragments. Products of two such matrices may take them in any order that both have.
#pragma once

#include <cstdint>

#include "kernels/cuda/e4m3.h"

namespace llmb::cuda {

namespace fp8 {

constexpr int kGroup = 64;  // numbers that change places with each other

// Bytes from one row of `width` numbers to the next: whole groups, zeros at the end.
constexpr int64_t row_bytes(int64_t width) { return (width + kGroup - 1) / kGroup * kGroup; }

// Number k of a group is byte place_of(k): lane l of a warp has 16 bytes from 16 · (l % 4) on, four for each 16 k of an
// mma_m16n8k16: the first and the third are neighbours, the others those 8 on.
constexpr int place_of(int k) { return k % 8 / 2 * 16 + k / 16 * 4 + k % 2 * 2 + k % 16 / 8; }
// The number that is byte `place`.
constexpr int number_at(int place) { return place % 16 / 4 * 16 + place % 2 * 8 + place / 16 * 2 + place % 4 / 2; }

}  // namespace fp8

// A weight matrix in device memory. Owns nothing.
struct Fp8View {
  const E4m3* weight = nullptr;   // [out_features, fp8::row_bytes(in_features)]  aligned to 16
  const float* scales = nullptr;  // [out_features]
  const void* bias = nullptr;     // [out_features] of the activations' type, or nullptr
  int64_t out_features = 0;
  int64_t in_features = 0;

  constexpr int64_t row_bytes() const { return fp8::row_bytes(in_features); }
};

// Rows as quantize_rows() makes them.
struct Fp8Rows {
  const E4m3* values = nullptr;   // [rows, fp8::row_bytes(in_features)]  aligned to 16
  const float* scales = nullptr;  // [rows]
};

}  // namespace llmb::cuda
