// add_rms_norm: residual += delta; out = residual / rms(residual) * weight (RMSNorm, Zhang and Sennrich 2019).
// Each row's result depends on that row alone: 16 partial sums of squares, combined in a fixed tree.
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

}  // namespace llmb::cpu
