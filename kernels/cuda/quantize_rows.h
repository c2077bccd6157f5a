// quantize_rows: rows rounded to int8, each with a scale of its own: q = round(x · 127 / max |x|), to even where two
// are as near; scale = max |x| / 127. The numbers that kernels/cpu makes of the same row (linear_int8.cpp,
// linear_pack.cpp). Or to e4m3, with 448 for 127, in the order of fp8_rows.h.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/fp8_rows.h"

namespace llmb::cuda {

// Bytes from one int8 row of `width` numbers to the next: whole loads of 16 bytes, zeros at the end.
constexpr int64_t int8_row_bytes(int64_t width) { return (width + 15) / 16 * 16; }

// T: float, __nv_bfloat16 or __half. A row with NaN or infinity has a scale of NaN and numbers of 0; one whose largest
// |x| has no finite 127 / |x| has numbers of 0. Throws CudaError.
template <class T>
void quantize_rows(const T* x,  // [rows, width]
                   int64_t rows, int64_t width,
                   int8_t* out,    // [rows, int8_row_bytes(width)]  aligned to 16
                   float* scales,  // [rows]
                   cudaStream_t stream);
template <class T>
void quantize_rows(const T* x, int64_t rows, int64_t width,
                   E4m3* out,  // [rows, fp8::row_bytes(width)]  aligned to 16
                   float* scales, cudaStream_t stream);

}  // namespace llmb::cuda
