// The device functions that kernels call: barriers, warp shuffles and votes, atomics, bit casts, fast mathematics.
// Fast functions (__expf, ...) are as exact as the host's.
#pragma once

#include <math.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/simt/block.h"

// ---- barriers -------------------------------------------------------------------------------------------------------

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  ::llmb::simt::barrier_sync(0, 0, {"__syncthreads", file, line});
}
int __syncthreads_count(int predicate, const char* file = __builtin_FILE(), int line = __builtin_LINE());
int __syncthreads_or(int predicate, const char* file = __builtin_FILE(), int line = __builtin_LINE());
int __syncthreads_and(int predicate, const char* file = __builtin_FILE(), int line = __builtin_LINE());

inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

// ---- warps ----------------------------------------------------------------------------------------------------------

namespace llmb::simt {

inline void meet_only(uint32_t, void* const*) {}

struct Shuffle {
  uint64_t value;
  uint64_t result;
  uint32_t source;
  Site site;
};
void shuffle(uint32_t mask, void* const* arguments);

template <class T>
T shuffle_from(uint32_t mask, T value, uint32_t source, Site site) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(uint64_t));
  Shuffle argument{0, 0, source, site};
  std::memcpy(&argument.value, &value, sizeof(T));
  warp_collective(mask, shuffle, &argument, site);
  T result;
  std::memcpy(static_cast<void*>(&result), &argument.result, sizeof(T));
  return result;
}

inline uint32_t this_lane() { return g_thread->lane; }

}  // namespace llmb::simt

#define LLMB_SIMT_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, LLMB_SIMT_SITE) {
  ::llmb::simt::warp_collective(mask, ::llmb::simt::meet_only, nullptr, {"__syncwarp", file, line});
}

// `width` as in CUDA: a power of two; lanes of the same segment exchange values.
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, LLMB_SIMT_SITE) {
  const uint32_t lane = ::llmb::simt::this_lane();
  const uint32_t segment = lane & ~static_cast<uint32_t>(width - 1);
  return ::llmb::simt::shuffle_from(mask, value, segment | (static_cast<uint32_t>(source) & (width - 1)),
                                    {"__shfl_sync", file, line});
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, LLMB_SIMT_SITE) {
  const uint32_t lane = ::llmb::simt::this_lane();
  uint32_t source = lane ^ static_cast<uint32_t>(lane_mask);
  if (source > (lane | static_cast<uint32_t>(width - 1))) source = lane;
  return ::llmb::simt::shuffle_from(mask, value, source, {"__shfl_xor_sync", file, line});
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, LLMB_SIMT_SITE) {
  const uint32_t lane = ::llmb::simt::this_lane();
  const uint32_t in_segment = lane & static_cast<uint32_t>(width - 1);
  return ::llmb::simt::shuffle_from(mask, value, in_segment >= delta ? lane - delta : lane,
                                    {"__shfl_up_sync", file, line});
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, LLMB_SIMT_SITE) {
  const uint32_t lane = ::llmb::simt::this_lane();
  const uint32_t in_segment = lane & static_cast<uint32_t>(width - 1);
  return ::llmb::simt::shuffle_from(mask, value,
                                    in_segment + delta < static_cast<uint32_t>(width) ? lane + delta : lane,
                                    {"__shfl_down_sync", file, line});
}

unsigned __ballot_sync(unsigned mask, int predicate, LLMB_SIMT_SITE);
inline int __any_sync(unsigned mask, int predicate, LLMB_SIMT_SITE) {
  return __ballot_sync(mask, predicate, file, line) != 0;
}
inline int __all_sync(unsigned mask, int predicate, LLMB_SIMT_SITE) {
  return __ballot_sync(mask, !predicate, file, line) == 0;
}
// The lanes that happen to be together: nobody may rely on more than the caller.
inline unsigned __activemask() { return 1u << ::llmb::simt::this_lane(); }
unsigned __match_any_sync(unsigned mask, unsigned value, LLMB_SIMT_SITE);
unsigned __reduce_add_sync(unsigned mask, unsigned value, LLMB_SIMT_SITE);
unsigned __reduce_max_sync(unsigned mask, unsigned value, LLMB_SIMT_SITE);
unsigned __reduce_min_sync(unsigned mask, unsigned value, LLMB_SIMT_SITE);
int __reduce_max_sync(unsigned mask, int value, LLMB_SIMT_SITE);
int __reduce_min_sync(unsigned mask, int value, LLMB_SIMT_SITE);
inline int __reduce_add_sync(unsigned mask, int value, LLMB_SIMT_SITE) {
  return static_cast<int>(__reduce_add_sync(mask, static_cast<unsigned>(value), file, line));
}
#undef LLMB_SIMT_SITE

// ---- atomics: one thread runs at a time ---------------------------------------------------------------------------

template <class T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  const T old = *address;
  if constexpr (std::is_integral_v<T>) {
    *address = static_cast<T>(static_cast<std::make_unsigned_t<T>>(old) + static_cast<std::make_unsigned_t<T>>(value));
  } else {
    *address = static_cast<T>(old + value);
  }
  return old;
}
template <class T>
T atomicSub(T* address, std::type_identity_t<T> value) {
  const T old = *address;
  *address = static_cast<T>(static_cast<std::make_unsigned_t<T>>(old) - static_cast<std::make_unsigned_t<T>>(value));
  return old;
}
template <class T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T>);
  const T old = *address;
  *address = std::max(old, value);
  return old;
}
template <class T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T>);
  const T old = *address;
  *address = std::min(old, value);
  return old;
}
template <class T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  const T old = *address;
  *address = value;
  return old;
}
template <class T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T>);
  const T old = *address;
  if (old == expected) *address = value;
  return old;
}
template <class T>
T atomicAnd(T* address, std::type_identity_t<T> value) {
  const T old = *address;
  *address = old & value;
  return old;
}
template <class T>
T atomicOr(T* address, std::type_identity_t<T> value) {
  const T old = *address;
  *address = old | value;
  return old;
}
inline unsigned atomicInc(unsigned* address, unsigned limit) {
  const unsigned old = *address;
  *address = old >= limit ? 0 : old + 1;
  return old;
}

// ---- loads and stores with cache hints ----------------------------------------------------------------------------

template <class T>
T __ldg(const T* address) {
  return *address;
}
template <class T>
T __ldcg(const T* address) {
  return *address;
}
template <class T>
T __ldcs(const T* address) {
  return *address;
}
template <class T>
T __ldca(const T* address) {
  return *address;
}
template <class T>
T __ldlu(const T* address) {
  return *address;
}
template <class T>
T __ldcv(const T* address) {
  return *address;
}
template <class T>
void __stcg(T* address, std::type_identity_t<T> value) {
  *address = value;
}
template <class T>
void __stcs(T* address, std::type_identity_t<T> value) {
  *address = value;
}
template <class T>
void __stwb(T* address, std::type_identity_t<T> value) {
  *address = value;
}
template <class T>
void __stwt(T* address, std::type_identity_t<T> value) {
  *address = value;
}

inline size_t __cvta_generic_to_shared(const void* address) { return reinterpret_cast<size_t>(address); }

// ---- arithmetic ---------------------------------------------------------------------------------------------------

#define LLMB_SIMT_MIN_MAX(result, a_type, b_type)                                                              \
  constexpr result min(a_type a, b_type b) { return static_cast<result>(b) < static_cast<result>(a) ? b : a; } \
  constexpr result max(a_type a, b_type b) { return static_cast<result>(a) < static_cast<result>(b) ? b : a; }
LLMB_SIMT_MIN_MAX(int, int, int)
LLMB_SIMT_MIN_MAX(unsigned, unsigned, unsigned)
LLMB_SIMT_MIN_MAX(unsigned, int, unsigned)
LLMB_SIMT_MIN_MAX(unsigned, unsigned, int)
LLMB_SIMT_MIN_MAX(long, long, long)
LLMB_SIMT_MIN_MAX(unsigned long, unsigned long, unsigned long)
LLMB_SIMT_MIN_MAX(long long, long long, long long)
LLMB_SIMT_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
#undef LLMB_SIMT_MIN_MAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }

inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return powf(10.0f, x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline void __sincosf(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frsqrt_rn(float x) { return static_cast<float>(1.0 / sqrt(static_cast<double>(x))); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline int __float2int_rn(float x) { return static_cast<int>(nearbyintf(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline int __float2int_rd(float x) { return static_cast<int>(floorf(x)); }
inline int __float2int_ru(float x) { return static_cast<int>(ceilf(x)); }
inline unsigned __float2uint_rn(float x) { return static_cast<unsigned>(nearbyintf(x)); }

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline int __ffsll(long long x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned long long>(x)) + 1; }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((uint64_t{a} * b) >> 32); }
inline int __mulhi(int a, int b) { return static_cast<int>((int64_t{a} * b) >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ typedef unsigned __int128 Wide;
  return static_cast<unsigned long long>((static_cast<Wide>(a) * b) >> 64);
}
unsigned __brev(unsigned x);
unsigned __byte_perm(unsigned a, unsigned b, unsigned selector);
unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift);
unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift);

[[noreturn]] inline void __trap() { ::llmb::simt::fault("__trap"); }
inline void __nanosleep(unsigned) {}
inline long long clock64() { return static_cast<long long>(::llmb::simt::block_epoch()); }
