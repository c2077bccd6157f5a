// Matrices into 2:4 sparse units (sparse24_units.h) and out of them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/block_format.h"
#include "kernels/cuda/sparse24_units.h"

namespace llmb::cuda {

// Rows of blocks of kSparse24F16 or kSparse24BF16, which keep two of every four numbers; the numbers rounded to T.
// first_feature: the rows' place in the matrix that `units` are of. T: __nv_bfloat16 or __half. REQUIRES: in_features
// is a multiple of 32, `units` were filled with kEmptyByte before the first call. Throws CudaError.
template <class T>
void pack_sparse24(const uint8_t* blocks,  // [rows, in_features / 32] of block_size() bytes, aligned to 4
                   BlockFormat format, int64_t rows, int64_t in_features, int64_t first_feature, uint8_t* units,
                   cudaStream_t stream);

// The numbers of a matrix, zeros in their places. T: what they were packed as. REQUIRES: in_features is a multiple of
// 32, out aligned to 16. Throws CudaError.
template <class T>
void widen_sparse24(const Sparse24View& weight,
                    T* out,  // [out_features, in_features]
                    cudaStream_t stream);

}  // namespace llmb::cuda
