// add_embedding: residual[i] += table[rows[i]], as learned positions are added.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace llmb::cuda {

// T: float, __nv_bfloat16 or __half. REQUIRES: rows of the table. Throws CudaError.
template <class T>
void add_embedding(const T* table,       // [any, hidden]
                   const int32_t* rows,  // [num_rows]
                   int64_t num_rows, int64_t hidden,
                   float* residual,  // [num_rows, hidden]  in and out
                   cudaStream_t stream);

}  // namespace llmb::cuda
