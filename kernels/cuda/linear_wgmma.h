// linear_wgmma: out = x · weightᵀ + bias on Hopper. Weights are streamed once for up to 128 rows, at the rate of
// memory, and sums over k are cut where the sizes of the weight and of the device say, never the rows: a row's bits do
// not depend on the others, as with linear_mma. How work is shared out: kernels/README.md, CUDA.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/linear_view.h"
#include "kernels/cuda/memory.h"

namespace llmb::cuda {

// Shared by calls on one stream. Driven by one thread.
class LinearWgmma {
 public:
  // num_sms: of the device; decides how sums over k are cut. Throws CudaError.
  LinearWgmma(int32_t num_sms, cudaStream_t stream);

  // Whether run() takes this weight: rows of 16-byte pieces, and not more features than there are counters for.
  static bool takes(const LinearView& weight);

  // T: __nv_bfloat16 or __half; Out: T or float. x, out and the weight are aligned to 16 bytes. REQUIRES:
  // takes(weight), has_hopper_code(). Throws CudaError.
  template <class T, class Out>
  void run(const LinearView& weight,
           const T* x,  // [rows, in_features]
           int64_t rows,
           Out* out,  // [rows, out_features]
           cudaStream_t stream);

 private:
  const int32_t num_sms_;
  DeviceMemory partials_, counters_;
};

}  // namespace llmb::cuda
