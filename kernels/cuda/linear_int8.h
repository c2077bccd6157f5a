// linear_int8: out = x · weightᵀ + bias, both as int8 (W8A8): out = sum · scale of the feature · scale of the row +
// bias.
//
// Sums of products are exact integers, scales are multiplied and the bias added in fp32 in this order, so that an
// output has the same bits in every tiling and on the CPU (kernels/cpu/linear_int8.cpp).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/linear_grouped.h"
#include "kernels/cuda/quantize_rows.h"

namespace llmb::cuda {

// More in_features than this do not fit the sums.
constexpr int64_t kMaxInt8Features = 65536;

// A weight matrix in device memory. Owns nothing.
struct Int8View {
  const int8_t* weight = nullptr;  // [out_features, int8_row_bytes(in_features)]  aligned to 16
  const float* scales = nullptr;   // [out_features]
  const float* bias = nullptr;     // [out_features], or nullptr
  int64_t out_features = 0;
  int64_t in_features = 0;

  constexpr int64_t row_bytes() const { return int8_row_bytes(in_features); }
};

// Rows as quantize_rows() makes them.
struct Int8Rows {
  const int8_t* values = nullptr;  // [rows, int8_row_bytes(in_features)]  aligned to 16
  const float* scales = nullptr;   // [rows]
};

// Out: float, __nv_bfloat16 or __half. REQUIRES: in_features <= kMaxInt8Features. Throws CudaError.
template <class Out>
void linear_int8(const Int8View& weight, const Int8Rows& x, int64_t rows,
                 Out* out,  // [rows, out_features]
                 cudaStream_t stream);

// The outputs of sums that another has made. REQUIRES: out_features is a multiple of kScaledFeatures, out is aligned to
// 16 bytes.
constexpr int64_t kScaledFeatures = 8;
template <class Out>
void scale_int8_sums(const Int8View& weight, const Int8Rows& x, int64_t rows,
                     const int32_t* sums,  // [rows, out_features]  aligned to 16 bytes
                     Out* out,             // [rows, out_features]
                     cudaStream_t stream);

// Adds to *differences how many sums are others than linear_int8's.
void count_int8_differences(const Int8View& weight, const Int8Rows& x, int64_t rows,
                            const int32_t* sums,    // [rows, out_features]
                            uint32_t* differences,  // on the device
                            cudaStream_t stream);

// As linear_grouped(), of weights.scales != nullptr.
template <class Out>
void linear_grouped_int8(const GroupedWeights& weights, const Int8Rows& x, const int32_t* x_rows, const RowTile* tiles,
                         int32_t num_tiles, int32_t tile_rows, Out* out, cudaStream_t stream);

}  // namespace llmb::cuda
