#include "kernels/cpu/gather.h"

#include <cstring>

namespace llmb::cpu {

void gather_rows(const float* x, const int32_t* rows, int64_t num_rows, int64_t width, float* out, ThreadPool& pool) {
  pool.parallel_for(num_rows, [&](int64_t i, int) {
    std::memcpy(out + i * width, x + rows[i] * width, static_cast<size_t>(width) * sizeof(float));
  });
}

void mean_rows(const float* x, const int32_t* begins, const int32_t* ends, int64_t num_runs, int64_t width, float* out,
               ThreadPool& pool) {
  pool.parallel_for(num_runs, [&](int64_t i, int) {
    float* const sum = out + i * width;
    std::memcpy(sum, x + begins[i] * width, static_cast<size_t>(width) * sizeof(float));
    for (int64_t row = begins[i] + 1; row < ends[i]; ++row)
      for (int64_t at = 0; at < width; ++at) sum[at] += x[row * width + at];
    const auto count = static_cast<float>(ends[i] - begins[i]);
    for (int64_t at = 0; at < width; ++at) sum[at] /= count;
  });
}

}  // namespace llmb::cpu
