// silu_mul: out = silu(gate) * up, with silu(x) = x / (1 + exp(-x)) (SwiGLU, Shazeer 2020).
// Elementwise: each output depends on its own two inputs alone.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"

namespace llmb::cpu {

void silu_mul(const float* gate_up,  // [rows, 2 * intermediate]  gate first
              int64_t rows, int64_t intermediate,
              float* out,  // [rows, intermediate]
              ThreadPool& pool);

}  // namespace llmb::cpu
