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

  // Above so many rows it is faster to write the weight's numbers to memory and multiply these. Reckoned, not measured,
  // for an H100, in cycles of a multiprocessor for a unit. 128 rows take 656 here: 82 KiB of shared memory are read for
  // them. The numbers take 1,770 to be written, and 5 a row to be multiplied, at 0.8 of the peak. So 512 rows take
  // 2,600 here, 3,700 at 0.7 of that limit, and 4,300 by their numbers; 1,024 take 5,200, 7,500 and 6,900.
  static constexpr int64_t kMaxRows = 512;

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
