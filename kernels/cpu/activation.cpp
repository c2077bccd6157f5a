#include "kernels/cpu/activation.h"

#include <cmath>

namespace llmb::cpu {

void silu_mul(const float* gate_up, int64_t rows, int64_t intermediate, float* out, ThreadPool& pool) {
  pool.parallel_for(rows, [&](int64_t row, int) {
    const float* gate = gate_up + row * 2 * intermediate;
    for (int64_t i = 0; i < intermediate; ++i)
      out[row * intermediate + i] = gate[i] / (1.0f + std::exp(-gate[i])) * gate[intermediate + i];
  });
}

}  // namespace llmb::cpu
