// A stored tensor as bytes somewhere in host memory (usually a mapped file).
#pragma once

#include <cstdint>

#include "core/block_format.h"
#include "core/types.h"

namespace llmb {

// Row-major [rows, cols]; a vector has rows == 1. `data` may be unaligned for its dtype. Where `blocks` says so, a row
// is whole blocks of that format, and `dtype` is what its numbers become where blocks are not kept.
struct TensorView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  BlockFormat blocks = BlockFormat::kNone;

  int64_t row_bytes() const {
    if (blocks == BlockFormat::kNone) return cols * dtype_bytes(dtype);
    return cols / block_size(blocks).size * block_size(blocks).bytes;
  }
};

}  // namespace llmb
