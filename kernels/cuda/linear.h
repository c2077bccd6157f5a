// linear: out = x · weightᵀ + bias by cuBLASLt or by kernels of our own, linear_wgmma and linear_mma; chosen once for
// each shape.
//
// Driven by one thread. Invariants:
//  1. Accumulation is fp32 (no TF32 for fp32 operands); out is of T or fp32.
//  2. After tune() of a shape the choice for it does not change, and no call allocates memory.
//  3. Deterministic: always kernels of our own, the same for any number of rows, so that a row's bits do not depend on
//     the others.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>

#include "core/types.h"
#include "kernels/cuda/linear_view.h"
#include "kernels/cuda/linear_wgmma.h"
#include "kernels/cuda/memory.h"

namespace llmb::cuda {

struct LinearOptions {
  DType dtype = DType::kBF16;  // of weights and x
  bool deterministic = false;
  bool hopper = false;  // has_hopper_code()
  int32_t num_sms = 1;
};

class Linear {
 public:
  // Throws CudaError.
  Linear(const LinearOptions& options, cudaStream_t stream);
  Linear(const Linear&) = delete;
  Linear& operator=(const Linear&) = delete;
  ~Linear();

  // Throws CudaError. Chooses an algorithm by cuBLASLt's heuristic where tune() did not.
  void run(const LinearView& weight,
           const void* x,  // [rows, in_features]
           int64_t rows,
           void* out,  // [rows, out_features]
           DType out_dtype, cudaStream_t stream);

  // Where there is a choice, times the candidates on these arguments and keeps the fastest. `out` is overwritten.
  // Waits.
  void tune(const LinearView& weight, const void* x, int64_t rows, void* out, DType out_dtype, cudaStream_t stream);

  static int64_t tuning_bytes();

 private:
  // Shapes that share an algorithm; rows rounded up, see row_class().
  using Key = std::tuple<int64_t /*out*/, int64_t /*in*/, int64_t /*row class*/, bool /*bias*/, DType /*out*/>;
  struct Call;
  enum class Kernel : uint8_t { kMma, kWgmma, kCublas };
  struct Algorithm {
    Kernel kernel;
    cublasLtMatmulAlgo_t cublas{};
  };

  // The kernel of our own that is always used for so many rows of this weight; none where there is a choice.
  std::optional<Algorithm> own(const LinearView& weight, int64_t rows) const;
  const Algorithm& algorithm(const Key& key, const Call& call);
  void run(const Call& call, const Algorithm& algorithm, cudaStream_t stream);

  const LinearOptions options_;
  std::optional<LinearWgmma> wgmma_;  // on Hopper
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  DeviceMemory workspace_;
  std::map<Key, Algorithm> algorithms_;
};

}  // namespace llmb::cuda
