// linear_int8 of many rows with its sums from cuBLASLt: exact integers, so that outputs have linear_int8's bits. Each
// algorithm's first sums are compared with linear_int8's, on the device, and an algorithm that gives others, or none, is
// not used again.
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

#include "kernels/cuda/cublas_lt.h"
#include "kernels/cuda/linear_int8.h"
#include "kernels/cuda/memory.h"

namespace llmb::cuda {

class LinearInt8Lt {
 public:
  // max_sums: so many sums at a time are in memory, at most. Throws CudaError.
  explicit LinearInt8Lt(int64_t max_sums);

  // False, and nothing is queued: linear_int8() has to. Waits where a shape is new; while the stream is being captured
  // a new one is refused instead. Throws CudaError.
  template <class Out>
  bool run(const Int8View& weight, const Int8Rows& x, int64_t rows,
           Out* out,  // [rows, out_features]
           cudaStream_t stream);

  // In one line, why an algorithm was not used the last time that one was not; empty: all were. The first is logged.
  const std::string& problem() const { return problem_; }

 private:
  // Shapes that share an algorithm; rows rounded up.
  using Key = std::tuple<int64_t /*out*/, int64_t /*in*/, int64_t /*row class*/>;
  struct Call;

  // Rows of such a weight whose sums are made at a time. 0: too few.
  int64_t rows_at_a_time(const Int8View& weight) const;
  // nullopt: linear_int8's.
  std::optional<cublasLtMatmulAlgo_t> algorithm(const Int8View& weight, const Int8Rows& x, int64_t rows,
                                                cudaStream_t stream);
  cublasLtMatmulAlgo_t checked(const Call& call, const Int8View& weight, const Int8Rows& x, int64_t rows,
                               cudaStream_t stream);

  CublasLtHandle<cublasLtHandle_t, &CublasLt::destroy> library_;
  CublasLtHandle<cublasLtMatmulPreference_t, &CublasLt::matmul_preference_destroy> preference_;
  const int64_t max_sums_;
  DeviceMemory sums_, workspace_, differences_;
  std::map<Key, std::optional<cublasLtMatmulAlgo_t>> algorithms_;
  std::string problem_;
};

}  // namespace llmb::cuda
