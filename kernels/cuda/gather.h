// gather_rows: copies chosen rows, such as those whose logits are sampled.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace llmb::cuda {

// T: float, __nv_bfloat16 or __half. A negative index, of a padded row, gives a row of zeros. Throws CudaError.
template <class T>
void gather_rows(const T* x,           // [*, width]
                 const int32_t* rows,  // [num_rows]  indices into x
                 int64_t num_rows, int64_t width,
                 T* out,  // [num_rows, width]
                 cudaStream_t stream);

}  // namespace llmb::cuda
