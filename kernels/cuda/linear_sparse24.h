// linear_sparse24: out = x · weightᵀ + bias of 2:4 sparse weights in 16 bits, products by the tensor cores' sparse
// instruction, sums in fp32 as linear_codes.h orders them. Weights that lie as fragments are read, so that few rows are
// bound by their bytes: Frantar et al. 2024, Marlin (arXiv:2408.11743), who do it for sparse int4 as well.
//
// A number of x that is infinite or NaN reaches the features that keep its column, where a widened matrix would
// multiply it by zeros too.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/linear_codes_options.h"
#include "kernels/cuda/sparse24_units.h"

namespace llmb::cuda {

// Shared by calls on one stream. Driven by one thread. A row's bits do not depend on the rows beside it.
class LinearSparse24 {
 public:
  // Throws CudaError.
  LinearSparse24(const LinearCodesOptions& options, cudaStream_t stream);

  // Whether there are kernels for this shape: rows of whole blocks of 32 numbers, and not more features than there are
  // counters for.
  static bool takes(int64_t out_features, int64_t in_features);

  // Above so many rows it is faster to write the weight's numbers to memory and multiply these. An H200 (2026-11-28)
  // takes 60 / 101 / 161 us for 256 rows of Llama-3.1-8B's qkv, down and gate_up here and 46 / 104 / 202 by their
  // numbers, 121 / 205 / 352 and 58 / 132 / 268 for 512.
  static constexpr int64_t kMaxRows = 256;

  // T: __nv_bfloat16 or __half; Out: T or float. x, out and the units are aligned to 16 bytes. More than 128 rows go
  // through the weight once for every 128. REQUIRES: takes(). Throws CudaError.
  template <class T, class Out>
  void run(const Sparse24View& weight,
           const T* x,  // [rows, in_features]
           int64_t rows,
           Out* out,  // [rows, out_features]
           cudaStream_t stream);

 private:
  const LinearCodesOptions options_;
  code_tiles::Workspace workspace_;
};

}  // namespace llmb::cuda
