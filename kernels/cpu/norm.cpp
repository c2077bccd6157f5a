#include "kernels/cpu/norm.h"

#include <cmath>

namespace llmb::cpu {

void add_rms_norm(float* residual, const float* delta, const float* weight, float eps, int64_t rows, int64_t hidden,
                  float* out, ThreadPool& pool) {
  pool.parallel_for(rows, [&](int64_t row, int) {
    float* r = residual + row * hidden;
    float sum = 0;
    for (int64_t i = 0; i < hidden; ++i) {
      if (delta) r[i] += delta[row * hidden + i];
      sum += r[i] * r[i];
    }
    const float scale = 1.0f / std::sqrt(sum / static_cast<float>(hidden) + eps);
    for (int64_t i = 0; i < hidden; ++i) out[row * hidden + i] = r[i] * scale * weight[i];
  });
}

}  // namespace llmb::cpu
