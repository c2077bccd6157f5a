// linear_w4a8: out = x · weightᵀ + bias of w4a8 weights and rows of int8 (after QServe, Lin et al. 2024,
// arXiv:2405.04532): codes become bytes in registers, products are those of int8 and exact, so that an output has the bits
// that linear_int8 gives for the same numbers, and the CPU (kernels/cpu/linear_int8.cpp).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/linear_codes_options.h"
#include "kernels/cuda/linear_int8.h"
#include "kernels/cuda/w4a8_units.h"

namespace llmb::cuda {

// Shared by calls on one stream. Driven by one thread.
class LinearW4A8 {
 public:
  // Throws CudaError.
  LinearW4A8(const LinearCodesOptions& options, cudaStream_t stream);

  // Whether there are kernels for this shape: sums that fit, and not more features than there are counters for.
  static bool takes(int64_t out_features, int64_t in_features);

  // Above so many rows a weight's numbers are to be written and multiplied by linear_int8: the same bits. Not timed: so
  // many go through the weight at once.
  static constexpr int64_t kMaxRows = code_tiles::kMaxRows;

  // Out: float, __nv_bfloat16 or __half. REQUIRES: takes(), rows <= kMaxRows. Throws CudaError.
  template <class Out>
  void run(const W4A8View& weight, const Int8Rows& x, int64_t rows,
           Out* out,  // [rows, out_features]
           cudaStream_t stream);

 private:
  const LinearCodesOptions options_;
  code_tiles::Workspace workspace_;
};

}  // namespace llmb::cuda
