// gather_rows: copies chosen rows, such as those whose logits are sampled.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"

namespace llmb::cpu {

void gather_rows(const float* x,       // [*, width]
                 const int32_t* rows,  // [num_rows]  indices into x
                 int64_t num_rows, int64_t width,
                 float* out,  // [num_rows, width]
                 ThreadPool& pool);

}  // namespace llmb::cpu
