// The block formats of ggml, turned into fp32 exactly as ggml does it: the same operations in the same order.
#pragma once

#include <cstdint>

#include "formats/gguf_file.h"

namespace llmb {

// F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, MXFP4.
bool can_dequantise(const GgufTensorType& type);

// REQUIRES: can_dequantise(type); cols is a multiple of the type's block_size.
void dequantise_row(const GgufTensorType& type, const uint8_t* row, int64_t cols, float* out);

}  // namespace llmb
