// add_layer_norm: residual += delta; out = (residual - mean) / stddev * weight + bias (Ba et al. 2016,
// arXiv:1607.06450). rms_norm_groups, layer_norm_groups: the same in place of groups of columns, such as the heads of q
// and k, by one weight for all groups, or by a weight for each. Each row's arithmetic depends on that row and on its
// width alone, not on how many rows there are.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace llmb::cuda {

// T: float, __nv_bfloat16 or __half; Out: T or float. Throws CudaError.
template <class T, class Out>
void add_layer_norm(float* residual,      // [rows, hidden]  in and out
                    const T* delta,       // [rows, hidden]  or nullptr: nothing is added
                    const float* weight,  // [hidden]
                    const float* bias,    // [hidden]  or nullptr: none
                    float eps, int64_t rows, int64_t hidden,
                    Out* out,  // [rows, hidden]  may be residual
                    cudaStream_t stream);

template <class T>
void rms_norm_groups(T* x,            // [rows, stride]  the first num_groups * width columns are normalised
                     int64_t stride,  // elements from one row to the next
                     int64_t num_groups,
                     const float* weight,  // [width]
                     int64_t width, float eps, int64_t rows, cudaStream_t stream);

template <class T>
void layer_norm_groups(T* x,            // [rows, stride]  the first num_groups * width columns are normalised
                       int64_t stride,  // elements from one row to the next
                       int64_t num_groups,
                       const float* weight,  // [num_groups, width]
                       const float* bias,    // [num_groups, width]  or nullptr: none
                       int64_t width, float eps, int64_t rows, cudaStream_t stream);

}  // namespace llmb::cuda
