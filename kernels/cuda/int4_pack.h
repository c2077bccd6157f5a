// Matrices into units (int4_units.h) and out of them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/tensor_view.h"
#include "kernels/cuda/int4_units.h"

namespace llmb::cuda {

// Rows of a matrix of in_features as int4: the codes and scales of kernels/cpu/quantize.h, scales rounded to T.
// first_feature: the rows' place in the matrix that `units` are of. T: __nv_bfloat16 or __half. REQUIRES: units without
// zeros, cleared before the first call. Throws CudaError.
template <class T>
void quantize_int4(const float* x,  // [rows, in_features]
                   int64_t rows, int64_t in_features, int64_t first_feature, uint8_t* units, cudaStream_t stream);

// Columns that go into units group by group, of blocks that are indexed (core/block_format.h).
struct BlockOrder {
  const int32_t* columns = nullptr;  // [in_features]  of blocks, which units have one after the other; null: in turn
  const int32_t* groups = nullptr;   // [in_features / 32]  of 32 of them
  int64_t num_groups = 0;            // of a row
};

// The same of rows of blocks, which keep their codes, scales and zeros: of kInt4F16 (T: __half) or kInt4BF16 (T:
// __nv_bfloat16), with kBytes and kBytesFromZeros of kInt8F16 or kInt8BF16, the same indexed, where there is an order,
// or of kMXFP4 with kE2m1. REQUIRES: in_features is a multiple of 32, zeros are up to int4::kMaxZero, with kFromEight
// 8, with kBytes 128, exponents up to int4::kMaxExponent.
template <class T>
void pack_int4_blocks(const uint8_t* blocks,  // [rows, in_features / 32] of block_size() bytes; a row's scales and zeros
                      int64_t rows, int64_t in_features, int64_t first_feature, int4::Meaning meaning, uint8_t* units,
                      cudaStream_t stream, const BlockOrder& order = {});

// The numbers of a matrix. REQUIRES: in_features is a multiple of 8, out aligned to 16.
template <class T>
void dequantize_int4(const Int4View& weight,
                     T* out,  // [out_features, in_features]
                     cudaStream_t stream);

}  // namespace llmb::cuda
