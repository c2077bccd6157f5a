// Tensor parallel: kernels on both sides of the calls in which ranks meet. Each rank has a part of a sum, of the
// vocabulary, or of the columns of a norm (core/rank_part.h).
//
// Sums over ranks are added in fp32 in the order of ranks, so their bits depend neither on timing nor on how many rows
// there are. Host functions throw CudaError.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/types.h"

namespace llmb::cuda {

// out[i] = parts[0][i] + parts[1][i] + …, rounded once. T: float, __nv_bfloat16 or __half.
template <class T>
void sum_parts(const T* parts,  // [num_parts, count]
               int32_t num_parts, int64_t count,
               T* out,  // [count]  none of `parts`
               cudaStream_t stream);
// The same, but part `own` is in `x`.
template <class T>
void sum_other_parts(const T* parts,  // [num_parts, count]
                     int32_t num_parts, int32_t own, int64_t count,
                     T* x,  // [count]  in and out; none of `parts`
                     cudaStream_t stream);

// Tokens [begin, begin + count) as rows of a table of these; 0 in place of others.
void own_tokens(const TokenId* tokens,  // [rows]
                int64_t begin, int64_t count, int64_t rows,
                TokenId* out,  // [rows]
                cudaStream_t stream);
// x[i] = 0 where tokens[i] is none of [begin, begin + count).
void clear_other_rows(const TokenId* tokens,  // [rows]
                      int64_t begin, int64_t count, int64_t rows, int64_t width,
                      float* x,  // [rows, width]  in and out
                      cudaStream_t stream);

// rms_norm over columns of which each rank has `width`: square_sums gives a rank's part, in fp32, of each row and last
// the width; norm_by_sums scales by the parts of all ranks, added in their order.
template <class T>
void square_sums(const T* x,  // [rows, stride]  from the first of the columns on
                 int64_t stride, int64_t width, int64_t rows,
                 float* sums,  // [rows + 1]
                 cudaStream_t stream);
template <class T>
void norm_by_sums(T* x,  // [rows, stride]  in and out, from the first of the columns on
                  int64_t stride, int64_t width, int64_t rows,
                  const float* sums,  // [num_parts, rows + 1]
                  int32_t num_parts,
                  const float* weight,  // [width]
                  float eps, cudaStream_t stream);

}  // namespace llmb::cuda
