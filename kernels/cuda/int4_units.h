// How weights of four bits, and of eight in groups, lie in device memory: packed for the tensor cores' fragments, so that
// a thread reads 16 bytes and has its operands of four products, of eight bits eight bytes for each. A number is
// scale · (code − zero), of the groups of kernels/cpu/quantize.h or of a checkpoint, or scale · e2m1 of MXFP4's blocks
// (core/block_format.h), rounded to the activations' dtype T.
//
// A matrix is cut into units of 128 features by 64 k, [tile of features][step of k]. A unit holds
//   codes  [8][32] uint4    of 16 features each, a lane's part of mma_m16n8k16's first operand for four times 16 k. Of
//                           a word, bits 4 i … 4 i + 3 are the first and 16 bits on the second number of register i
//       or [8][4][32] uint2 of eight bits, each less 128, with its sign: of 16 k, a word is a feature's numbers of two
//                           registers (as fp8_rows.h has them), the next one those of the feature 8 on
//   scales [2][8][8] T[2]   of 32 k each: of features i and i + 8 of 16; of MXFP4 times 2^kE2m1Shift
//   zeros  [2][8][8] T[2]   where the matrix has any, each as T has kMagic + zero; of eight bits zero − 128
// Units at the edges reach beyond the matrix; scales there are 0, so that codes there mean 0.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "core/types.h"

namespace llmb::cuda {

namespace int4 {

constexpr int kTileFeatures = 128, kUnitK = 64, kGroup = 32;
constexpr int kScaleBytes = kTileFeatures * (kUnitK / kGroup) * 2;

// From where codes of four bits are counted: 8 or a zero of the group; or they are MXFP4's. Those of bytes: 128 or a
// zero of the group.
enum class Meaning : uint8_t { kFromEight, kFromZeros, kE2m1, kBytes, kBytesFromZeros };
constexpr bool has_bytes(Meaning meaning) { return meaning == Meaning::kBytes || meaning == Meaning::kBytesFromZeros; }
constexpr bool has_zeros(Meaning meaning) {
  return meaning == Meaning::kFromZeros || meaning == Meaning::kBytesFromZeros;
}

constexpr int code_bytes(Meaning meaning) { return kTileFeatures * kUnitK / (has_bytes(meaning) ? 1 : 2); }
constexpr int unit_bytes(Meaning meaning) { return code_bytes(meaning) + (has_zeros(meaning) ? 2 : 1) * kScaleBytes; }
constexpr int64_t num_tiles(int64_t out_features) { return ceil_div(out_features, int64_t{kTileFeatures}); }
constexpr int64_t num_steps(int64_t in_features) { return ceil_div(in_features, int64_t{kUnitK}); }
constexpr int64_t bytes(int64_t out_features, int64_t in_features, Meaning meaning) {
  return num_tiles(out_features) * num_steps(in_features) * unit_bytes(meaning);
}

// A code behind the exponent of kMagic is kMagic + code, exactly. e2m1's three bits behind the sign, as T's lowest of
// the exponent and highest of the mantissa, are the number by 2^kE2m1Shift.
template <class T>
struct Pairs;
template <>
struct Pairs<__nv_bfloat16> {
  using Pair = __nv_bfloat162;
  static constexpr uint32_t kMagic = 0x43004300u;  // 128
  static constexpr int kMantissaBits = 7, kExponentBias = 127, kE2m1Shift = 126;
};
template <>
struct Pairs<__half> {
  using Pair = __half2;
  static constexpr uint32_t kMagic = 0x64006400u;  // 1024
  static constexpr int kMantissaBits = 10, kExponentBias = 15, kE2m1Shift = 14;
};
constexpr int kMaxZero = 127;      // that either type has behind its exponent; of bytes any
constexpr int kMaxExponent = 128;  // of MXFP4's scales, as stored, that either type has times 2^kE2m1Shift

}  // namespace int4

// A weight matrix in device memory. Owns nothing.
struct Int4View {
  const uint8_t* units = nullptr;  // int4::bytes(), aligned to 16
  const void* bias = nullptr;      // [out_features] of T, or nullptr
  int64_t out_features = 0;
  int64_t in_features = 0;
  int4::Meaning meaning = int4::Meaning::kFromEight;
};

}  // namespace llmb::cuda
