// linear_wgmma8: linear_int8, and linear_fp8 of rows rounded to e4m3, on Hopper's warpgroup products of bytes (W8A8):
// out = sum · scale of the feature · scale of the row + bias, written from registers.
//
// int8: exact sums, linear_int8's bits however the work is shared out. e4m3: the tensor cores add up 128 values of k, a
// bit more than 13 bits of each such sum being theirs; the rest is added in fp32, in an order that the sizes of the
// weight and of the device alone decide: a row's bits do not depend on the rows beside it.
//
// How work is shared out: kernels/README.md, CUDA.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <tuple>

#include "core/types.h"
#include "kernels/cuda/fp8_rows.h"
#include "kernels/cuda/linear_int8.h"
#include "kernels/cuda/memory.h"

namespace llmb::cuda {

// How a product is divided: a block of threads multiplies `features` by `rows` over a part of k.
struct Wgmma8Tiling {
  int32_t features = 0;   // a multiple of 8
  int32_t rows = 0;       // 16, 32, 64, 128, or of int8 256
  int32_t num_parts = 1;  // of k
  // Whether blocks share out the parts; else one has them all, one after the other.
  bool is_split = false;
};

// Shared by calls on one stream. Driven by one thread.
class LinearWgmma8 {
 public:
  // num_sms: of the device; decides how work is shared out. Throws CudaError.
  LinearWgmma8(int32_t num_sms, cudaStream_t stream);

  // The tilings that run() chooses.
  Wgmma8Tiling int8_tiling(int64_t out_features, int64_t in_features, int64_t rows);
  Wgmma8Tiling fp8_tiling(int64_t out_features, int64_t in_features, int64_t rows) const;
  // Whether a product can have it: room for its parts' sums.
  bool fits(const Wgmma8Tiling& tiling, int64_t out_features, int64_t rows) const;

  // Out: float, __nv_bfloat16 or __half. REQUIRES: in_features <= kMaxInt8Features, has_hopper_code(). Throws
  // CudaError.
  template <class Out>
  void run(const Int8View& weight, const Int8Rows& x, int64_t rows,
           Out* out,  // [rows, out_features]
           cudaStream_t stream);
  // The same, divided as the caller says. REQUIRES: fits(), tiling.num_parts == 1 where not is_split.
  template <class Out>
  void run(const Int8View& weight, const Int8Rows& x, int64_t rows, const Wgmma8Tiling& tiling, Out* out,
           cudaStream_t stream);

  // bias_dtype: of the weight's bias. REQUIRES: has_hopper_code(). Throws CudaError.
  template <class Out>
  void run(const Fp8View& weight, const Fp8Rows& x, int64_t rows, DType bias_dtype,
           Out* out,  // [rows, out_features]
           cudaStream_t stream);

 private:
  const int32_t num_sms_;
  DeviceMemory partials_, counters_;
  std::map<std::tuple<int64_t /*out*/, int64_t /*in*/, int64_t /*rows*/>, Wgmma8Tiling> int8_tilings_;
};

}  // namespace llmb::cuda
