// Matrices into units of w4a8 (w4a8_units.h) and out of them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/w4a8_units.h"

namespace llmb::cuda {

// Rows of a matrix of in_features as w4a8: the numbers, scales and zeros of kernels/cpu/quantize.h. first_feature: the
// rows' place in the matrix that `units` are of. A row with NaN or infinity has a scale of NaN and numbers of 0. REQUIRES:
// units were cleared before the first call. Throws CudaError.
void quantize_w4a8(const float* x,  // [rows, in_features]
                   int64_t rows, int64_t in_features, int64_t first_feature, uint8_t* units,
                   float* scales,  // [rows]
                   cudaStream_t stream);

// The numbers of a matrix, as linear_int8 takes them; bytes behind the end of a row are any: x has zeros there.
void widen_w4a8(const W4A8View& weight,
                int8_t* out,  // [out_features, int8_row_bytes(in_features)], aligned to 16
                cudaStream_t stream);

}  // namespace llmb::cuda
