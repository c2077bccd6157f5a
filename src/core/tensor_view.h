// A stored tensor as bytes somewhere in host memory (usually a mapped file).
#pragma once

#include <cstdint>

#include "core/block_format.h"
#include "core/types.h"

namespace llmb {

// Which group each column of a matrix of indexed blocks is in.
struct ColumnGroups {
  const uint16_t* of = nullptr;  // [cols], each below `count`; null where the matrix has no data
  int64_t count = 0;
};

// Row-major [rows, cols]; a vector has rows == 1. `data` may be unaligned for its dtype. Where `blocks` says so, a row
// is whole blocks of that format, and `dtype` is what its numbers become where blocks are not kept.
struct TensorView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  BlockFormat blocks = BlockFormat::kNone;
  ColumnGroups groups = {};  // of indexed blocks

  int64_t row_bytes() const {
    if (blocks == BlockFormat::kNone) return cols * dtype_bytes(dtype);
    const int64_t codes = cols / block_size(blocks).size * block_size(blocks).bytes;
    return is_indexed(blocks) ? codes + groups.count * kGroupScaleBytes : codes;
  }
};

// The numbers of a row of blocks in fp32. REQUIRES: matrix.blocks != kNone, matrix.data != nullptr.
void decode_row(const TensorView& matrix, int64_t row, float* out);  // [cols]

}  // namespace llmb
