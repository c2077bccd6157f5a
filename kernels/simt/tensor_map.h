// The contents of a CUtensorMap in the host SIMT layer.
#pragma once

#include <cstdint>

#include "cuda.h"

namespace llmb::simt {

constexpr uint32_t kMaxTensorRank = 5;
constexpr uint64_t kTensorMapMark = 0x7A3D;

struct TensorMap {
  uint64_t mark = kTensorMapMark;
  const void* base = nullptr;
  uint64_t strides_bytes[kMaxTensorRank - 1] = {};
  uint32_t sizes[kMaxTensorRank] = {};
  uint16_t box[kMaxTensorRank] = {};
  uint8_t rank = 0;
  uint8_t element_bytes = 0;
  bool swizzle_128 = false;
};
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap));

// Where byte `address` of a tile in rows of 128 bytes lies with the 128-byte swizzle: its 16-byte piece of the row is
// exchanged by the number of the row, counted from the last multiple of 1024.
constexpr uintptr_t swizzle_128(uintptr_t address) { return address ^ (address >> 3 & 0x70); }

}  // namespace llmb::simt
