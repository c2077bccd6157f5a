// A stored tensor as bytes somewhere in host memory (usually a mapped file).
#pragma once

#include <cstdint>

#include "core/types.h"

namespace llmb {

// Row-major [rows, cols]; a vector has rows == 1. `data` may be unaligned for its dtype.
struct TensorView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
};

}  // namespace llmb
