// The functions of kernels/cuda/ptx.h for the host SIMT layer. Fragment layouts are PTX's.
//
// 1. A cp.async lands when its group is waited for; until then its destination holds NaN bytes.
// 2. mma sums products, which are exact, in fp32.
#pragma once

#include <cstdint>

#include "base/float_formats.h"
#include "kernels/simt/intrinsics.h"

namespace llmb::cuda::ptx {

// ---- asynchronous copies ------------------------------------------------------------------------------------------

void cp_async16(void* to_shared, const void* from_global, bool valid = true);
void cp_async_commit();
namespace detail {
void cp_async(void* to_shared, const void* from_global, uint32_t bytes, bool valid);
void cp_async_wait(uint32_t num_pending);
}  // namespace detail
template <int kBytes>
void cp_async(void* to_shared, const void* from_global, bool valid = true) {
  static_assert(kBytes == 4 || kBytes == 8);
  detail::cp_async(to_shared, from_global, kBytes, valid);
}
template <int kNumPending>
void cp_async_wait() {
  detail::cp_async_wait(kNumPending);
}

// ---- matrices -----------------------------------------------------------------------------------------------------

namespace detail {
void ldmatrix(uint32_t* registers, int num_matrices, bool transposed, const void* row, const char* file, int line);
template <class T>
void mma_m16n8k16(float* d, const uint32_t* a, const uint32_t* b, const char* file, int line);
void mma_m16n8k32_int8(int32_t* d, const uint32_t* a, const uint32_t* b, const char* file, int line);
}  // namespace detail

#define LLMB_SIMT_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void ldmatrix_x2(uint32_t (&registers)[2], const void* row, LLMB_SIMT_SITE) {
  detail::ldmatrix(registers, 2, false, row, file, line);
}
inline void ldmatrix_x4(uint32_t (&registers)[4], const void* row, LLMB_SIMT_SITE) {
  detail::ldmatrix(registers, 4, false, row, file, line);
}
inline void ldmatrix_x4_trans(uint32_t (&registers)[4], const void* row, LLMB_SIMT_SITE) {
  detail::ldmatrix(registers, 4, true, row, file, line);
}

template <class T>
void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], LLMB_SIMT_SITE) {
  detail::mma_m16n8k16<T>(d, a, b, file, line);
}
inline void mma_m16n8k32_int8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], LLMB_SIMT_SITE) {
  detail::mma_m16n8k32_int8(d, a, b, file, line);
}
#undef LLMB_SIMT_SITE

// ---- others -------------------------------------------------------------------------------------------------------

inline float ex2_approx(float x) { return exp2f(x); }
template <class T>
void keep(T&) {}
inline uint32_t and_or(uint32_t x, uint32_t mask, uint32_t bits) { return (x & mask) | bits; }
inline void e4m3_to_f16(uint32_t bytes, uint32_t& first, uint32_t& second) {
  const auto number = [&](int i) -> uint32_t {
    return f32_to_f16(fp8_e4m3_to_f32(static_cast<uint8_t>(bytes >> 8 * i)));
  };
  first = number(0) | number(1) << 16;
  second = number(2) | number(3) << 16;
}

// Kernels run one after another here. That a kernel started ahead waits at all is checked (block.h).
inline void wait_for_previous_grid() { ::llmb::simt::waited_for_previous_grid(); }
inline void launch_next_grid() {}
inline void follow_previous_grid() { wait_for_previous_grid(); }

// `num_threads` threads (a multiple of 32) meet at barrier `id` (1 to 15); bar_arrive does not wait.
namespace detail {
inline void check_barrier(uint32_t id, uint32_t num_threads) {
  if (id == 0 || id > 15 || num_threads % 32 != 0) ::llmb::simt::fault("a named barrier's number or count is wrong");
}
}  // namespace detail
inline void bar_sync(uint32_t id, uint32_t num_threads, const char* file = __builtin_FILE(),
                     int line = __builtin_LINE()) {
  detail::check_barrier(id, num_threads);
  ::llmb::simt::barrier_sync(id, num_threads, {"bar_sync", file, line});
}
inline void bar_arrive(uint32_t id, uint32_t num_threads, const char* file = __builtin_FILE(),
                       int line = __builtin_LINE()) {
  detail::check_barrier(id, num_threads);
  ::llmb::simt::barrier_arrive(id, num_threads, {"bar_arrive", file, line});
}

}  // namespace llmb::cuda::ptx

#include "kernels/simt/sm90.h"
