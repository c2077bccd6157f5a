// The base of bench_kernels' cases: shapes, options, data, and the clock that compares with the machine's limits.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/machine_limits.h"

namespace llmb::bench {

// As in data/shapes/*/config.json.
struct Shape {
  const char* name;
  int32_t hidden, intermediate, heads, kv_heads, head_dim, vocab;

  int32_t q() const { return heads * head_dim; }
  int32_t kv() const { return kv_heads * head_dim; }
};
constexpr Shape kShapes[] = {{"smollm2-135m", 576, 1536, 9, 3, 64, 49152},
                             {"qwen2.5-0.5b", 896, 4864, 14, 2, 64, 151936},
                             {"llama-3.2-1b", 2048, 8192, 32, 8, 64, 128256},
                             {"llama-3.1-8b", 4096, 14336, 32, 8, 128, 128256}};

struct CpuBenchOptions {
  std::vector<std::string> ops = {"linear",    "paged_attention", "add_rms_norm", "rope_and_kv_write", "silu_mul",
                                  "embedding", "gather_rows",     "sample",       "block_copy"};
  std::string shape = "all";
  std::vector<int64_t> rows = {1, 8, 64, 512};
  std::string dtype = "bfloat16";
  std::vector<int32_t> contexts = {512, 4096};
  std::vector<std::string> kv_dtypes = {"float32", "bfloat16", "int8"};
  int num_threads = 0;
  int repeats = 9;
  int64_t max_weight_mib = 600;

  bool rounds_to_bf16() const { return dtype == "bfloat16:bfloat16"; }
  bool wants(const std::string& op) const { return std::find(ops.begin(), ops.end(), op) != ops.end(); }
};

inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline uint64_t hash_bytes(const void* data, size_t size, uint64_t hash = 14695981039346656037u) {  // FNV-1a
  for (size_t i = 0; i < size; ++i) hash = (hash ^ static_cast<const uint8_t*>(data)[i]) * 1099511628211u;
  return hash;
}
inline uint64_t hash_floats(const std::vector<float>& v) { return hash_bytes(v.data(), v.size() * sizeof(float)); }

// Cheap reproducible values in [-1, 1) times scale.
inline std::vector<float> make_floats(int64_t n, uint32_t seed, float scale = 1) {
  std::vector<float> v(static_cast<size_t>(n));
  uint32_t state = seed * 2654435761u + 1;
  for (float& x : v) {
    state = state * 1664525u + 1013904223u;
    x = scale * (static_cast<float>(state >> 8) * 0x1p-23f - 1);
  }
  return v;
}

class CpuBench {
 public:
  explicit CpuBench(const CpuBenchOptions& options)
      : options_(options), pool_(options.num_threads > 0 ? options.num_threads : usable_cpu_count()) {
    measure_limits();
    std::printf("%s, %d threads, peak %.1f GFLOP/s, memory %.1f GB/s\n", cpu::simd_target_name().c_str(),
                pool_.num_threads(), flops_per_s_ / 1e9, bytes_per_s_ / 1e9);
    std::printf("%-18s %-14s %-34s %10s %10s %10s %8s %10s %8s  %s\n", "op", "shape", "case", "median ms", "best ms",
                "GFLOP/s", "% peak", "GB/s", "% mem", "output hash");
  }

  // The limits once more: a machine that others use changes under a run.
  void finish() {
    measure_limits();
    std::printf("at the end: peak %.1f GFLOP/s, memory %.1f GB/s\n", flops_per_s_ / 1e9, bytes_per_s_ / 1e9);
  }

  const CpuBenchOptions& options() const { return options_; }
  ThreadPool& pool() { return pool_; }

  // Prints the median and the best of several rounds; rates are of the best, as the limits are: others on the machine
  // only ever slow a round down. flops and bytes: what the op must at least do and move.
  void time(const char* op, const Shape& shape, const std::string& what, double flops, double bytes,
            const std::function<void()>& body, const std::function<uint64_t()>& hash) {
    constexpr double kMinRoundSeconds = 0.002;
    body();
    const uint64_t output_hash = hash();
    const double start = now_s();
    body();
    const int calls = std::max(1, static_cast<int>(kMinRoundSeconds / std::max(now_s() - start, 1e-7)));
    std::vector<double> seconds;
    for (int i = 0; i < options_.repeats; ++i) {
      const double begin = now_s();
      for (int c = 0; c < calls; ++c) body();
      seconds.push_back((now_s() - begin) / calls);
    }
    std::sort(seconds.begin(), seconds.end());
    const double best = seconds.front(), median = seconds[seconds.size() / 2];
    std::printf("%-18s %-14s %-34s %10.4f %10.4f %10.1f %8.1f %10.1f %8.1f  %016llx\n", op, shape.name, what.c_str(),
                median * 1e3, best * 1e3, flops / best / 1e9, 100 * flops / best / flops_per_s_, bytes / best / 1e9,
                100 * bytes / best / bytes_per_s_, static_cast<unsigned long long>(output_hash));
    std::fflush(stdout);
  }

 private:
  void measure_limits() {
    const bool is_int8 = options_.dtype == "int8" || options_.dtype == "w4a8";
    flops_per_s_ = (is_int8                     ? cpu::measure_peak_int8_ops(pool_)
                    : options_.rounds_to_bf16() ? cpu::measure_peak_bf16_flops(pool_)
                                                : cpu::measure_peak_flops(pool_))
                       .best;
    bytes_per_s_ = cpu::measure_read_bandwidth(pool_).best;
  }

  CpuBenchOptions options_;
  ThreadPool pool_;
  double flops_per_s_ = 0, bytes_per_s_ = 0;
};

}  // namespace llmb::bench
