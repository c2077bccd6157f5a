#include "kernels/cpu/machine_limits.h"

#include <chrono>
#include <vector>

namespace llmb::cpu {

namespace {
double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
}  // namespace

double measure_peak_flops(ThreadPool& pool) {
  constexpr int kLanes = 64, kIterations = 1000000;
  std::vector<float> sums(pool.num_threads());
  const double start = now_s();
  pool.parallel_for(pool.num_threads(), [&](int64_t task, int) {
    float acc[kLanes] = {};
    for (int i = 0; i < kIterations; ++i)
      for (float& a : acc) a = a * 0.5f + 1.0f;
    for (const float a : acc) sums[task] += a;
  });
  return sums[0] > 0 ? 2.0 * kLanes * kIterations * pool.num_threads() / (now_s() - start) : 0;
}

double measure_read_bandwidth(ThreadPool& pool) {
  std::vector<uint64_t> buffer(int64_t{32} << 20, 1);
  std::vector<uint64_t> sums(64);
  const double start = now_s();
  const int64_t n = static_cast<int64_t>(buffer.size()) / 64;
  pool.parallel_for(64, [&](int64_t task, int) {
    uint64_t sum = 0;
    for (int64_t i = task * n; i < (task + 1) * n; ++i) sum += buffer[i];
    sums[task] = sum;
  });
  return sums[0] > 0 ? static_cast<double>(buffer.size() * 8) / (now_s() - start) : 0;
}

const char* simd_target_name() { return "scalar"; }

}  // namespace llmb::cpu
