// gather_rows: copies chosen rows, such as those whose logits are sampled. mean_rows: the means of runs of rows.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"

namespace llmb::cpu {

void gather_rows(const float* x,       // [*, width]
                 const int32_t* rows,  // [num_rows]  indices into x
                 int64_t num_rows, int64_t width,
                 float* out,  // [num_rows, width]
                 ThreadPool& pool);

// out[i] = the mean of x[begins[i]] to x[ends[i] - 1], summed in their order. REQUIRES: begins[i] < ends[i]
void mean_rows(const float* x,        // [*, width]
               const int32_t* begins,  // [num_runs]
               const int32_t* ends,    // [num_runs]
               int64_t num_runs, int64_t width,
               float* out,  // [num_runs, width]
               ThreadPool& pool);

}  // namespace llmb::cpu
