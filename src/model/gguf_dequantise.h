// Rows of a GGUF tensor in fp32, exactly as ggml makes them.
#pragma once

#include <cstdint>

#include "formats/gguf_file.h"

namespace llmb {

// F32, F16, BF16 and the formats of core/block_format.h.
bool can_dequantise(const GgufTensorType& type);

// REQUIRES: can_dequantise(type); cols is a multiple of the type's block_size.
void dequantise_row(const GgufTensorType& type, const uint8_t* row, int64_t cols, float* out);

}  // namespace llmb
