// activate: what an MLP does between its projections: out = f(gate) * up, or out = f(x) without a gate; silu_mul is the
// commonest of them, SwiGLU (Shazeer 2020, arXiv:2002.05202). core/activation.h says which f there are.
// Elementwise: each output depends on its own inputs alone.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "core/activation.h"

namespace llmb::cpu {

void activate(const ActivationSpec& spec,
              const float* x,  // [rows, 2 * intermediate] gate first, or [rows, intermediate]
              int64_t rows, int64_t intermediate,
              float* out,  // [rows, intermediate]
              ThreadPool& pool);

// out = f(x) * y, of kinds that have no gate of their own
void activate_times(Activation kind,
                    const float* x,                    // [rows, width]
                    const float* y, int64_t y_stride,  // [rows, y_stride]  the first `width` columns
                    int64_t rows, int64_t width,
                    float* out,  // [rows, width]
                    ThreadPool& pool);

// Activates some columns: `up` is nullptr without a gate. By the calling thread.
void activate_rows(const ActivationSpec& spec, const float* x, const float* up, int64_t x_stride, int64_t rows,
                   int64_t columns, float* out, int64_t out_stride);

// out = silu(gate) * up, with silu(x) = x / (1 + exp(-x))
inline void silu_mul(const float* gate_up,  // [rows, 2 * intermediate]  gate first
                     int64_t rows, int64_t intermediate,
                     float* out,  // [rows, intermediate]
                     ThreadPool& pool) {
  activate({Activation::kSilu}, gate_up, rows, intermediate, out, pool);
}

}  // namespace llmb::cpu
