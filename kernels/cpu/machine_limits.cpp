#include "kernels/cpu/machine_limits.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/machine_limits.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/simd-inl.h"

#ifndef LLMB_KERNELS_CPU_MACHINE_LIMITS_ONCE_
#define LLMB_KERNELS_CPU_MACHINE_LIMITS_ONCE_
namespace llmb::cpu {
// Independent chains: enough to hide the latency of a multiply-add at two a cycle, few enough for 16 registers.
constexpr int kChains = 12;
}  // namespace llmb::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace llmb::cpu {
namespace HWY_NAMESPACE {

// Flops done; *sink keeps the compiler from dropping the work.
int64_t multiply_add_chains(int64_t iterations, float* sink) {
  const D d;
  const V factor = hn::Set(d, 0.5f), addend = hn::Set(d, 1.0f);
  V acc[kChains];
  LLMB_UNROLL for (int i = 0; i < kChains; ++i) acc[i] = hn::Set(d, static_cast<float>(i));
  for (int64_t n = 0; n < iterations; ++n) {
    LLMB_UNROLL for (int i = 0; i < kChains; ++i) acc[i] = hn::MulAdd(acc[i], factor, addend);
  }
  for (int i = 0; i < kChains; ++i) *sink += hn::GetLane(acc[i]);
  return iterations * kChains * kLanes * 2;
}

// Sum of the words, so that every one is read.
uint32_t read_words(const uint32_t* words, int64_t num_words) {
  const DU du;
  auto a = hn::Zero(du), b = a, c = a, e = a;
  const int64_t lanes = kLanes;
  for (int64_t i = 0; i + 4 * lanes <= num_words; i += 4 * lanes) {
    a = hn::Add(a, hn::Load(du, words + i));
    b = hn::Add(b, hn::Load(du, words + i + lanes));
    c = hn::Add(c, hn::Load(du, words + i + 2 * lanes));
    e = hn::Add(e, hn::Load(du, words + i + 3 * lanes));
  }
  return hn::GetLane(hn::Add(hn::Add(a, b), hn::Add(c, e)));
}

const char* target_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmb::cpu {

HWY_EXPORT(multiply_add_chains);
HWY_EXPORT(read_words);
HWY_EXPORT(target_name);

namespace {

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Best rate of several rounds: others on the machine only ever slow a round down.
template <typename Round>
double best_rate(const Round& round) {
  constexpr double kSeconds = 0.1;
  double best = 0;
  for (const double start = now_s(); now_s() - start < kSeconds;) {
    const double begin = now_s();
    const double work = round();
    best = std::max(best, work / (now_s() - begin));
  }
  return best;
}

}  // namespace

double measure_peak_flops(ThreadPool& pool) {
  constexpr int64_t kIterations = 200000;  // about a millisecond
  std::vector<float> sinks(static_cast<size_t>(pool.num_threads()));
  std::vector<int64_t> flops(sinks.size());
  return best_rate([&] {
    pool.parallel_for(pool.num_threads(), [&](int64_t i, int) {
      flops[i] = HWY_DYNAMIC_DISPATCH(multiply_add_chains)(kIterations, &sinks[i]);
    });
    double sum = 0;
    for (const int64_t f : flops) sum += static_cast<double>(f);
    return sum;
  });
}

double measure_read_bandwidth(ThreadPool& pool) {
  constexpr int64_t kBytes = int64_t{320} << 20;
  constexpr int64_t kChunkBytes = int64_t{4} << 20;
  AlignedBuffer buffer(kBytes);
  std::vector<uint32_t> sinks(kBytes / kChunkBytes);
  const auto for_chunks = [&](const auto& body) {
    pool.parallel_for(kBytes / kChunkBytes, [&](int64_t i, int) { body(buffer.data() + i * kChunkBytes, i); });
    return static_cast<double>(kBytes);
  };
  for_chunks([](uint8_t* p, int64_t) { std::memset(p, 1, kChunkBytes); });
  return best_rate([&] {
    return for_chunks([&](const uint8_t* p, int64_t i) {
      sinks[i] += HWY_DYNAMIC_DISPATCH(read_words)(reinterpret_cast<const uint32_t*>(p), kChunkBytes / 4);
    });
  });
}

const char* simd_target_name() { return HWY_DYNAMIC_DISPATCH(target_name)(); }

}  // namespace llmb::cpu
#endif
