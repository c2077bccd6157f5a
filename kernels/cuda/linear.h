// linear: out = x · weightᵀ + bias by cuBLASLt or, where that is faster, by linear_mma; chosen once for each shape.
//
// Driven by one thread. Invariants:
//  1. Accumulation is fp32 (no TF32 for fp32 operands); out is of T or fp32.
//  2. After tune() of a shape the choice for it does not change, and no call allocates memory.
//  3. Deterministic: always linear_mma, so that a row's bits do not depend on the others.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>

#include "core/types.h"
#include "kernels/cuda/linear_view.h"
#include "kernels/cuda/memory.h"

namespace llmb::cuda {

class Linear {
 public:
  // `dtype`: of weights and x. Throws CudaError.
  Linear(DType dtype, bool deterministic);
  Linear(const Linear&) = delete;
  Linear& operator=(const Linear&) = delete;
  ~Linear();

  // Throws CudaError. Chooses an algorithm by cuBLASLt's heuristic where tune() did not.
  void run(const LinearView& weight,
           const void* x,  // [rows, in_features]
           int64_t rows,
           void* out,  // [rows, out_features]
           DType out_dtype, cudaStream_t stream);

  // Times the heuristic's best candidates, and linear_mma where rows are few, on these arguments and keeps the fastest.
  // `out` is overwritten. Waits.
  void tune(const LinearView& weight, const void* x, int64_t rows, void* out, DType out_dtype, cudaStream_t stream);

 private:
  // Shapes that share an algorithm; rows rounded up, see row_class().
  using Key = std::tuple<int64_t /*out*/, int64_t /*in*/, int64_t /*row class*/, bool /*bias*/, DType /*out*/>;
  struct Call;
  using Algorithm = std::optional<cublasLtMatmulAlgo_t>;  // none: linear_mma

  const Algorithm& algorithm(const Key& key, const Call& call);
  void run(const Call& call, const Algorithm& algorithm, cudaStream_t stream) const;

  const DType dtype_;
  const bool deterministic_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  DeviceMemory workspace_;
  std::map<Key, Algorithm> algorithms_;
};

}  // namespace llmb::cuda
