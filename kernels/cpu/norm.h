// add_rms_norm: residual += delta; out = residual / rms(residual) * weight (RMSNorm, Zhang and Sennrich 2019).
// add_layer_norm: residual += delta; out = (residual - mean) / stddev * weight + bias (Ba et al. 2016,
// arXiv:1607.06450). rms_norm_groups, layer_norm_groups: the same in place of groups of columns, such as the heads of q
// and k, by one weight for all groups, or by a weight for each. Each row's result depends on that row alone: every sum is
// 16 partial sums, combined in a fixed tree.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"

namespace llmb::cpu {

void add_rms_norm(float* residual,      // [rows, hidden]  in and out
                  const float* delta,   // [rows, hidden]  or nullptr: nothing is added
                  const float* weight,  // [hidden]
                  float eps, int64_t rows, int64_t hidden,
                  float* out,  // [rows, hidden]
                  ThreadPool& pool);

void add_layer_norm(float* residual,      // [rows, hidden]  in and out
                    const float* delta,   // [rows, hidden]  or nullptr: nothing is added
                    const float* weight,  // [hidden]
                    const float* bias,    // [hidden]  or nullptr: none
                    float eps, int64_t rows, int64_t hidden,
                    float* out,  // [rows, hidden]  may be residual
                    ThreadPool& pool);

void rms_norm_groups(float* x,        // [rows, stride]  the first num_groups * width columns are normalised
                     int64_t stride,  // floats from one row to the next
                     int64_t num_groups,
                     const float* weight,  // [width]
                     int64_t width, float eps, int64_t rows, ThreadPool& pool);

void layer_norm_groups(float* x,        // [rows, stride]  the first num_groups * width columns are normalised
                       int64_t stride,  // floats from one row to the next
                       int64_t num_groups,
                       const float* weight,  // [num_groups, width]
                       const float* bias,    // [num_groups, width]  or nullptr: none
                       int64_t width, float eps, int64_t rows, ThreadPool& pool);

}  // namespace llmb::cpu
