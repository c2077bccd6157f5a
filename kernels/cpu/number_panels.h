// Panels of quantised weights: whole numbers of eight or four bits (linear_pack.cpp has the others). Private to kernels/cpu.
//   int8   [ceil(in_features / 4)][64][4]  four k in one 32-bit word, the operand of an int8 dot product
//   int4   for each group of 32 k: [4][64] words of eight k, the lowest four bits first, each a two's complement number;
//          then scales [64] bfloat16. Words are also read from up to three bytes on.
//   w4a8   for each group of 32 k: [4][64] words of eight k: byte i has k + i in its low half and k + 4 + i in its high
//          one; then [64] bytes, the scales, and [64] bytes, the zeros. A number is code · scale − zero, within ±127.
// Whoever changes the bytes that are made of a matrix raises kWeightCacheVersion (src/backend/cpu/weight_cache.h).
#pragma once

#include <cstdint>

#include "core/tensor_view.h"
#include "kernels/cpu/linear.h"

namespace llmb::cpu {

constexpr int64_t kNumberGroup = PackedLinear::kInt4Group;
constexpr int64_t kNumberGroupBytes = PackedLinear::kPanelWidth * (2 + kNumberGroup / 2);  // of int4 and w4a8

// Element `index` of a matrix that is not in blocks.
float load_element(const TensorView& t, int64_t index);

// Columns [first, first + count) of stored row `row` of `part`; all of them where the part is in blocks.
struct PanelRow {
  const TensorView* part = nullptr;
  int64_t row = 0, first = 0, count = 0;
  float operator[](int64_t k) const { return load_element(*part, row * part->cols + first + k); }
  int64_t size() const { return count; }
  const uint8_t* bytes() const {
    return static_cast<const uint8_t*>(part->data) + row * part->row_bytes() + first * dtype_bytes(part->dtype);
  }
  PanelRow whole() const { return {part, row, 0, part->cols}; }
};
// Its elements [begin, end) as fp32.
void widen_row(const PanelRow& row, int64_t begin, int64_t end, float* to);

// A panel of `count` rows. scales, sums: of these rows, sums 0 before; scales are those of whole rows, whichever columns
// are taken. Panels of fewer than 64 rows, or of in_features that are no whole groups, are zeros before.
void pack_int8(const PanelRow* rows, int64_t count, uint8_t* panel, float* scales, int32_t* sums);
void pack_int4(const PanelRow* rows, int64_t count, uint8_t* panel);
void pack_w4a8(const PanelRow* rows, int64_t count, uint8_t* panel, float* scales, int32_t* sums);

// A weight as a panel has it; of int8 and w4a8 without the scale of its output feature.
int32_t int8_number(const uint8_t* panel, int64_t k, int64_t column);
int32_t w4a8_number(const uint8_t* panel, int64_t k, int64_t column);
float int4_value(const uint8_t* panel, int64_t k, int64_t column);

}  // namespace llmb::cpu
