// linear_fp8: out = scale of the feature · (x · weightᵀ) + bias of e4m3 weights and 16-bit activations (W8A16):
// products are exact, sums in fp32 as linear_codes.h orders them, the scale multiplied and the bias added behind them.
// A row's bits do not depend on the rows beside it.
//
// Many rows, where runs are not deterministic: linear_fp8_lt.h.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/types.h"
#include "kernels/cuda/fp8_rows.h"
#include "kernels/cuda/linear_codes_options.h"
#include "kernels/cuda/linear_grouped.h"

namespace llmb::cuda {

// Shared by calls on one stream. Driven by one thread.
class LinearFp8 {
 public:
  // Throws CudaError.
  LinearFp8(const LinearCodesOptions& options, cudaStream_t stream);

  // Whether there are kernels for this shape: rows of 16-byte pieces, and not more features than there are counters
  // for.
  static bool takes(int64_t out_features, int64_t in_features);

  // T: __nv_bfloat16 or __half; Out: T or float. x and out are aligned to 16 bytes. More than 128 rows go through the
  // weight once for every 128. REQUIRES: takes(). Throws CudaError.
  template <class T, class Out>
  void run(const Fp8View& weight,
           const T* x,  // [rows, in_features]
           int64_t rows,
           Out* out,  // [rows, out_features]
           cudaStream_t stream);

 private:
  const LinearCodesOptions options_;
  code_tiles::Workspace workspace_;
};

// Adds to *differences how many outputs of W8A8, whose sums another has made, are further than 2^-8 of the sum of all
// magnitudes from a plain sum in fp32. Numbers that are not finite are not counted.
template <class Out>
void count_fp8_differences(const Fp8View& weight, const Fp8Rows& x, int64_t rows, DType bias_dtype,
                           const Out* out,         // [rows, out_features]
                           uint32_t* differences,  // on the device
                           cudaStream_t stream);

// As linear_grouped(), of weights.is_fp8. T: __nv_bfloat16 or __half. REQUIRES: LinearFp8::takes().
template <class T>
void linear_grouped_fp8(const GroupedWeights& weights, const T* x, const int32_t* x_rows, const RowTile* tiles,
                        int32_t num_tiles, int32_t tile_rows, T* out, cudaStream_t stream);

}  // namespace llmb::cuda
