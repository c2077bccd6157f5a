// embedding: residual[i] = table[tokens[i]], widened to fp32.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/types.h"

namespace llmb::cuda {

// T: float, __nv_bfloat16 or __half. REQUIRES: tokens in [0, vocab_size). Throws CudaError.
template <class T>
void embedding(const T* table,         // [vocab_size, hidden]
               const TokenId* tokens,  // [rows]
               int64_t rows, int64_t hidden,
               float* residual,  // [rows, hidden]
               cudaStream_t stream);

// The same of rows that quantize_rows() made.
void embedding_int8(const int8_t* table,    // [vocab_size, int8_row_bytes(hidden)]  aligned to 16
                    const float* scales,    // [vocab_size]
                    const TokenId* tokens,  // [rows]
                    int64_t rows, int64_t hidden,
                    float* residual,  // [rows, hidden]
                    cudaStream_t stream);

}  // namespace llmb::cuda
