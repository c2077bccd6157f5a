// linear_fp8 of many rows by cuBLASLt, which also multiplies rows of x that were rounded to e4m3 (W8A8) and scales its
// sums by feature and row itself: out = sum · scale of the feature · scale of the row + bias, in cuBLASLt's order of
// sums. For GPUs of compute capability 9.0 and cuBLAS 12.9, and whatever else has such an algorithm. Each algorithm's
// first outputs are compared with a plain sum on the device, and an algorithm that is off, or none, is not used again.
//
// Driven by one thread.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "core/types.h"
#include "kernels/cuda/cublas_lt.h"
#include "kernels/cuda/fp8_rows.h"
#include "kernels/cuda/memory.h"

namespace llmb::cuda {

class LinearFp8Lt {
 public:
  // Throws CudaError.
  LinearFp8Lt();

  // Whether run() may take the product: it need not be asked, nor rows rounded for it, where it does not.
  static bool may_take(const Fp8View& weight, int64_t rows);

  // False, and nothing is queued: LinearFp8 has to. Waits where a shape is new; while the stream is being captured a
  // new one is refused instead. Out: float, __nv_bfloat16 or __half; bias_dtype: of the weight's bias. Throws
  // CudaError.
  template <class Out>
  bool run(const Fp8View& weight, const Fp8Rows& x, int64_t rows, DType bias_dtype,
           Out* out,  // [rows, out_features]
           cudaStream_t stream);

  // In one line, why an algorithm was not used the last time that one was not; empty: all were. The first is logged.
  const std::string& problem() const { return problem_; }

 private:
  // Shapes that share an algorithm; rows rounded up.
  using Key = std::tuple<int64_t /*out*/, int64_t /*in*/, int64_t /*row class*/, cudaDataType_t, bool /*has_bias*/>;
  struct Call;

  CublasLtHandle<cublasLtHandle_t, &CublasLt::destroy> library_;
  CublasLtHandle<cublasLtMatmulPreference_t, &CublasLt::matmul_preference_destroy> preference_;
  DeviceMemory workspace_, differences_;
  std::map<Key, std::optional<cublasLtMatmulAlgo_t>> algorithms_;
  std::string problem_;
};

}  // namespace llmb::cuda
