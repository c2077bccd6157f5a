#include "kernels/cpu/gather.h"

#include <cstring>

namespace llmb::cpu {

void gather_rows(const float* x, const int32_t* rows, int64_t num_rows, int64_t width, float* out, ThreadPool& pool) {
  pool.parallel_for(num_rows, [&](int64_t i, int) {
    std::memcpy(out + i * width, x + rows[i] * width, static_cast<size_t>(width) * sizeof(float));
  });
}

}  // namespace llmb::cpu
