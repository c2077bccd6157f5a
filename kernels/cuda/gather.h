// gather_rows: copies chosen rows, such as those whose logits are sampled. keep_rows: moves chosen rows to the front.
// mean_rows: the means of runs of rows.
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

// x[i] = x[kept[i]], whatever the rows hold. Behind the rows that are kept x is as it was, and row_bytes is even. Throws
// CudaError.
void keep_rows(void* x,              // [*, row_bytes]  in and out
               const int32_t* kept,  // [num_kept]  ascending, each row once
               int64_t num_kept, int64_t row_bytes, cudaStream_t stream);

// A mean's bits depend on its rows alone; that of one row is the row. A run without rows gives zeros. Out: float, or T.
// Throws CudaError.
template <class T, class Out>
void mean_rows(const T* x,             // [*, width]
               const int32_t* begins,  // [num_runs]  rows of x
               const int32_t* ends,    // [num_runs]  the row behind a run's last
               int64_t num_runs, int64_t width,
               Out* out,  // [num_runs, width]
               cudaStream_t stream);

}  // namespace llmb::cuda
