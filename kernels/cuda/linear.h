// linear: out = x · weightᵀ + bias by cuBLASLt, with the algorithm chosen once for each shape and kept.
//
// Driven by one thread. Invariants:
//  1. Accumulation is fp32 (no TF32 for fp32 operands); out is of T or fp32.
//  2. After tune() of a shape the algorithm for it does not change, and no call allocates memory.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <tuple>

#include "core/types.h"
#include "kernels/cuda/memory.h"

namespace llmb::cuda {

// A weight in device memory, both parts of the run's activation type T.
struct LinearView {
  const void* weight = nullptr;  // [out_features, in_features]
  const void* bias = nullptr;    // [out_features], or nullptr
  int64_t out_features = 0;
  int64_t in_features = 0;
};

class CublasLinear {
 public:
  // `dtype`: of weights and x. Throws CudaError.
  explicit CublasLinear(DType dtype);
  CublasLinear(const CublasLinear&) = delete;
  CublasLinear& operator=(const CublasLinear&) = delete;
  ~CublasLinear();

  // Throws CudaError. Chooses an algorithm by cuBLASLt's heuristic where tune() did not.
  void run(const LinearView& weight,
           const void* x,  // [rows, in_features]
           int64_t rows,
           void* out,  // [rows, out_features]
           DType out_dtype, cudaStream_t stream);

  // Times the heuristic's best candidates on these arguments and keeps the fastest. `out` is overwritten. Waits.
  void tune(const LinearView& weight, const void* x, int64_t rows, void* out, DType out_dtype, cudaStream_t stream);

 private:
  // Shapes that share an algorithm; rows rounded up, see row_class().
  using Key = std::tuple<int64_t /*out*/, int64_t /*in*/, int64_t /*row class*/, bool /*bias*/, DType /*out*/>;
  struct Call;

  const cublasLtMatmulAlgo_t& algorithm(const Key& key, const Call& call);

  const DType dtype_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  DeviceMemory workspace_;
  std::map<Key, cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace llmb::cuda
