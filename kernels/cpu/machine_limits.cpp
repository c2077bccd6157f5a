#include "kernels/cpu/machine_limits.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/caches.h"
#include "kernels/cpu/cpu_target.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/linear_bf16_neon.h"
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

// As multiply_add_chains, of int8 numbers.
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
__attribute__((target("avx512vnni"))) int64_t vnni_chains(int64_t iterations, float* sink) {
  // As text: the compiler would keep some of the sums in memory.
  for (int64_t n = 0; n < iterations; ++n)
    asm volatile(
        "vpdpbusd %%zmm0, %%zmm1, %%zmm2\n vpdpbusd %%zmm0, %%zmm1, %%zmm3\n vpdpbusd %%zmm0, %%zmm1, %%zmm4\n"
        "vpdpbusd %%zmm0, %%zmm1, %%zmm5\n vpdpbusd %%zmm0, %%zmm1, %%zmm6\n vpdpbusd %%zmm0, %%zmm1, %%zmm7\n"
        "vpdpbusd %%zmm0, %%zmm1, %%zmm8\n vpdpbusd %%zmm0, %%zmm1, %%zmm9\n vpdpbusd %%zmm0, %%zmm1, %%zmm10\n"
        "vpdpbusd %%zmm0, %%zmm1, %%zmm11\n vpdpbusd %%zmm0, %%zmm1, %%zmm12\n vpdpbusd %%zmm0, %%zmm1, %%zmm13\n" ::
            : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
              "xmm13");
  *sink += 1;
  return iterations * 12 * 64 * 2;
}
#endif

#if HWY_TARGET == HWY_AVX2 && HWY_ARCH_X86
__attribute__((target("avxvnni"))) int64_t avx_vnni_chains(int64_t iterations, float* sink) {
#define LLMB_DOT(sum) "%{vex%} vpdpbusd %%ymm0, %%ymm1, %%ymm" sum "\n "
  for (int64_t n = 0; n < iterations; ++n)
    asm volatile(
        LLMB_DOT("2") LLMB_DOT("3") LLMB_DOT("4") LLMB_DOT("5") LLMB_DOT("6") LLMB_DOT("7") LLMB_DOT("8") LLMB_DOT("9")
            LLMB_DOT("10") LLMB_DOT("11") LLMB_DOT("12") LLMB_DOT("13")::
            : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
              "xmm13");
#undef LLMB_DOT
  *sink += 1;
  return iterations * 12 * 32 * 2;
}
#endif

// Sums of four tiles; dot() adds to each of them.
#if LLMB_HAS_AMX_CODE && HWY_TARGET <= HWY_AVX3
template <typename Dot>
int64_t tile_chains(int64_t iterations, float* sink, const Dot& dot) {
  TileShapes shapes;
  for (int tile = 0; tile < 8; ++tile) shapes.set(tile, 16);
  AmxTiles::configure(shapes);
  for (int64_t n = 0; n < iterations; ++n) dot();
  AmxTiles::release();
  *sink += 1;
  return iterations * 4 * 16 * 16 * 64;
}
#endif

int64_t int8_chains(int64_t iterations, float* sink) {
#if LLMB_HAS_AMX_CODE && HWY_TARGET <= HWY_AVX3
  const auto dot = [] {
    AmxTiles::dot_bytes<0, 4, 6>(), AmxTiles::dot_bytes<1, 5, 6>();
    AmxTiles::dot_bytes<2, 4, 7>(), AmxTiles::dot_bytes<3, 5, 7>();
  };
  if (has_amx()) return 2 * tile_chains(iterations, sink, dot);
#endif
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  if (extensions().vnni) return vnni_chains(iterations, sink);
#endif
#if HWY_TARGET == HWY_AVX2 && HWY_ARCH_X86
  if (extensions().avx_vnni) return avx_vnni_chains(iterations, sink);
#endif
#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i acc[kChains], factor = _mm256_set1_epi8(1);
  LLMB_UNROLL for (int i = 0; i < kChains; ++i) acc[i] = _mm256_set1_epi32(i);
  for (int64_t n = 0; n < iterations; ++n) {
    LLMB_UNROLL for (int i = 0; i < kChains; ++i) {
      const __m256i pairs = _mm256_maddubs_epi16(factor, _mm256_sign_epi8(acc[i], factor));
      acc[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(pairs, ones));
    }
  }
  for (int i = 0; i < kChains; ++i) *sink += static_cast<float>(_mm256_extract_epi32(acc[i], 0));
  return iterations * kChains * 32 * 2;
#else
  const DI d;
  VI acc[kChains];
  const VI factor = hn::Set(d, 3), addend = hn::Set(d, 1);
  LLMB_UNROLL for (int i = 0; i < kChains; ++i) acc[i] = hn::Set(d, i);
  for (int64_t n = 0; n < iterations; ++n) {
    LLMB_UNROLL for (int i = 0; i < kChains; ++i) acc[i] = hn::Add(hn::Mul(acc[i], factor), addend);
  }
  for (int i = 0; i < kChains; ++i) *sink += static_cast<float>(hn::GetLane(acc[i]));
  return iterations * kChains * kLanes * 2;
#endif
}

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
__attribute__((target("avx512bf16"))) int64_t bf16_dot_chains(int64_t iterations, float* sink) {
  for (int64_t n = 0; n < iterations; ++n)
    asm volatile(
        "vdpbf16ps %%zmm0, %%zmm1, %%zmm2\n vdpbf16ps %%zmm0, %%zmm1, %%zmm3\n vdpbf16ps %%zmm0, %%zmm1, %%zmm4\n"
        "vdpbf16ps %%zmm0, %%zmm1, %%zmm5\n vdpbf16ps %%zmm0, %%zmm1, %%zmm6\n vdpbf16ps %%zmm0, %%zmm1, %%zmm7\n"
        "vdpbf16ps %%zmm0, %%zmm1, %%zmm8\n vdpbf16ps %%zmm0, %%zmm1, %%zmm9\n vdpbf16ps %%zmm0, %%zmm1, %%zmm10\n"
        "vdpbf16ps %%zmm0, %%zmm1, %%zmm11\n vdpbf16ps %%zmm0, %%zmm1, %%zmm12\n vdpbf16ps %%zmm0, %%zmm1, %%zmm13\n" ::
            : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
              "xmm13");
  *sink += 1;
  return iterations * 12 * 32 * 2;
}
#endif

#if HWY_TARGET == HWY_NEON
LLMB_BF16_MMLA int64_t bf16_mmla_chains(int64_t iterations, float* sink) {
  for (int64_t n = 0; n < iterations; ++n)
    asm volatile(
        "bfmmla v2.4s, v0.8h, v1.8h\n bfmmla v3.4s, v0.8h, v1.8h\n bfmmla v4.4s, v0.8h, v1.8h\n"
        "bfmmla v5.4s, v0.8h, v1.8h\n bfmmla v6.4s, v0.8h, v1.8h\n bfmmla v7.4s, v0.8h, v1.8h\n"
        "bfmmla v16.4s, v0.8h, v1.8h\n bfmmla v17.4s, v0.8h, v1.8h\n bfmmla v18.4s, v0.8h, v1.8h\n"
        "bfmmla v19.4s, v0.8h, v1.8h\n bfmmla v20.4s, v0.8h, v1.8h\n bfmmla v21.4s, v0.8h, v1.8h\n" ::
            : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16", "v17", "v18", "v19", "v20", "v21");
  *sink += 1;
  return iterations * 12 * 16 * 2;
}
#endif

int64_t bf16_chains(int64_t iterations, float* sink) {
#if LLMB_HAS_AMX_CODE && HWY_TARGET <= HWY_AVX3
  const auto dot = [] {
    AmxTiles::dot_bf16<0, 4, 6>(), AmxTiles::dot_bf16<1, 5, 6>();
    AmxTiles::dot_bf16<2, 4, 7>(), AmxTiles::dot_bf16<3, 5, 7>();
  };
  if (has_amx()) return tile_chains(iterations, sink, dot);
#endif
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  if (has_fast_bf16()) return bf16_dot_chains(iterations, sink);
#elif HWY_TARGET == HWY_NEON
  if (has_fast_bf16()) return bf16_mmla_chains(iterations, sink);
#endif
  return multiply_add_chains(iterations, sink);
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

int64_t target_now() { return HWY_TARGET; }

}  // namespace HWY_NAMESPACE
}  // namespace llmb::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmb::cpu {

HWY_EXPORT(multiply_add_chains);
HWY_EXPORT(int8_chains);
HWY_EXPORT(bf16_chains);
HWY_EXPORT(read_words);
HWY_EXPORT(target_now);

namespace {

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Work done in a second.
template <typename Round>
Rate rate_of(const Round& round) {
  constexpr double kSeconds = 0.2;
  double best = 0, all_work = 0, all_seconds = 0;
  for (const double start = now_s(); now_s() - start < kSeconds;) {
    const double begin = now_s();
    const double work = round();
    const double seconds = now_s() - begin;
    best = std::max(best, work / seconds);
    all_work += work;
    all_seconds += seconds;
  }
  return {best, all_work / all_seconds};
}

// Operations a second of all threads. chains(iterations, sink): does the work and says how many operations it was.
template <typename Chains>
Rate peak_rate(ThreadPool& pool, const Chains& chains) {
  // About a quarter of a millisecond; each thread takes several, so that a slower one keeps none waiting for long.
  constexpr int64_t kIterations = 50000, kTasksPerThread = 8;
  std::vector<float> sinks(static_cast<size_t>(kTasksPerThread * pool.num_threads()));
  std::vector<int64_t> operations(sinks.size());
  return rate_of([&] {
    pool.parallel_for(std::ssize(sinks), [&](int64_t i, int) { operations[i] = chains(kIterations, &sinks[i]); });
    double sum = 0;
    for (const int64_t n : operations) sum += static_cast<double>(n);
    return sum;
  });
}

}  // namespace

Rate measure_peak_flops(ThreadPool& pool) {
  return peak_rate(pool, [](int64_t n, float* sink) { return HWY_DYNAMIC_DISPATCH(multiply_add_chains)(n, sink); });
}

Rate measure_peak_int8_ops(ThreadPool& pool) {
  return peak_rate(pool, [](int64_t n, float* sink) { return HWY_DYNAMIC_DISPATCH(int8_chains)(n, sink); });
}

Rate measure_peak_bf16_flops(ThreadPool& pool) {
  return peak_rate(pool, [](int64_t n, float* sink) { return HWY_DYNAMIC_DISPATCH(bf16_chains)(n, sink); });
}

Rate measure_read_bandwidth(ThreadPool& pool, int64_t max_bytes) {
  constexpr int64_t kMinBytes = int64_t{320} << 20, kMaxBytes = int64_t{2} << 30;
  constexpr int64_t kChunkBytes = int64_t{4} << 20;
  const int64_t wanted = std::min(std::clamp(4 * last_level_cache_bytes(), kMinBytes, kMaxBytes), max_bytes);
  const int64_t num_chunks = std::max<int64_t>(1, wanted / kChunkBytes);
  AlignedBuffer buffer(num_chunks * kChunkBytes);
  std::vector<uint32_t> sinks(static_cast<size_t>(num_chunks));
  const auto for_chunks = [&](const auto& body) {
    pool.parallel_for(num_chunks, [&](int64_t i, int) { body(buffer.data() + i * kChunkBytes, i); });
    return static_cast<double>(buffer.size_bytes());
  };
  for_chunks([](uint8_t* p, int64_t) { std::memset(p, 1, kChunkBytes); });
  return rate_of([&] {
    return for_chunks([&](const uint8_t* p, int64_t i) {
      sinks[i] += HWY_DYNAMIC_DISPATCH(read_words)(reinterpret_cast<const uint32_t*>(p), kChunkBytes / 4);
    });
  });
}

std::string simd_target_name() { return target_name(HWY_DYNAMIC_DISPATCH(target_now)()); }

}  // namespace llmb::cpu
#endif
