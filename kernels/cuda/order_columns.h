// order_columns: the columns of rows in another order, as a weight has them whose groups are of columns that do not lie
// side by side (GPTQ's act-order).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace llmb::cuda {

// out[i] = x[columns[i]] of each row of numbers of 16 bits, whatever they are. REQUIRES: width is a multiple of 8, all
// arrays are aligned to 16 bytes. Throws CudaError.
void order_columns(const uint16_t* x,       // [rows, width]
                   const int32_t* columns,  // [width]
                   int64_t rows, int64_t width,
                   uint16_t* out,  // [rows, width]
                   cudaStream_t stream);

}  // namespace llmb::cuda
