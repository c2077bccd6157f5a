// The functions of kernels/cuda/ptx_sm90.h for the host SIMT layer.
//
// 1. A tensor copy lands when its mbarrier is waited for, in any order with the others; until then its
// destination
//    holds NaN bytes. A block that ends with copies or products in flight is a fault.
// 2. wgmma reads shared memory when it is issued or when it is waited for, drawn by the seed; its sums arrive at the
// wait,
//    until then the registers are NaN.
// 3. Shared addresses in descriptors count from the start of the block's dynamic shared memory; only the 128-byte
// swizzle
//    is emulated.
#pragma once

#include <cstdint>

#include "cuda.h"
#include "kernels/simt/float16.h"
#include "kernels/simt/intrinsics.h"

#define LLMB_HAS_SM90A 1
#define LLMB_SIMT_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace llmb::cuda::ptx {

// ---- mbarriers ----------------------------------------------------------------------------------------------------

void mbarrier_init(uint64_t* barrier, uint32_t num_arrivals);
inline void mbarrier_init_fence() {}
void mbarrier_arrive(uint64_t* barrier);
void mbarrier_arrive_expect_tx(uint64_t* barrier, uint32_t num_bytes);
void mbarrier_wait(uint64_t* barrier, uint32_t parity, LLMB_SIMT_SITE);

// ---- copies that an mbarrier counts -------------------------------------------------------------------------------

inline void fence_proxy_async() {}
inline void tma_prefetch(const CUtensorMap*) {}
void tma_load_2d(void* to_shared, const CUtensorMap* map, uint64_t* barrier, int32_t c0, int32_t c1);

// ---- warpgroup products -------------------------------------------------------------------------------------------

template <int kCount>
void registers_increase() {
  static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256);
}
template <int kCount>
void registers_decrease() {
  static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256);
}

void wgmma_fence();
void wgmma_commit();
uint64_t wgmma_descriptor(const void* shared, uint32_t leading_bytes, uint32_t stride_bytes);

namespace detail {

enum class WgmmaBytes : uint8_t { kNone, kInt8, kE4m3 };
struct Wgmma {
  void* d;  // of int32_t for int8, else of float
  const uint32_t* a_registers;  // null: by a_descriptor
  uint64_t a_descriptor;
  uint64_t b_descriptor;
  int num_columns;
  bool is_bfloat16;
  bool mn_major_a;
  bool mn_major_b;
  bool add;
  WgmmaBytes bytes = WgmmaBytes::kNone;  // else elements of 8 bits, 32 values of k
};
void wgmma(const Wgmma& operation, const char* file, int line);
void wgmma_wait(uint32_t num_pending);
void stmatrix_trans(void* column, const uint32_t (&registers)[4], const char* file, int line);

}  // namespace detail

template <int kNumPending>
void wgmma_wait() {
  detail::wgmma_wait(kNumPending);
}

template <class T, int kN, bool kMnMajorA = false, bool kMnMajorB = false>
void wgmma(float (&d)[kN / 2], uint64_t a_descriptor, uint64_t b_descriptor, bool add, LLMB_SIMT_SITE) {
  static_assert(kN % 16 == 0 && kN >= 16 && kN <= 256 && sizeof(T) == 2);
  detail::wgmma(
      {d, nullptr, a_descriptor, b_descriptor, kN, std::is_same_v<T, __nv_bfloat16>, kMnMajorA, kMnMajorB, add}, file,
      line);
}
template <class T, int kN, bool kMnMajorB = false>
void wgmma(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b_descriptor, bool add, LLMB_SIMT_SITE) {
  static_assert(kN % 16 == 0 && kN >= 16 && kN <= 256 && sizeof(T) == 2);
  detail::wgmma({d, a, 0, b_descriptor, kN, std::is_same_v<T, __nv_bfloat16>, false, kMnMajorB, add}, file, line);
}

template <int kN>
void wgmma_int8(int32_t (&d)[kN / 2], uint64_t a_descriptor, uint64_t b_descriptor, bool add, LLMB_SIMT_SITE) {
  static_assert(kN == 16 || kN == 32 || kN == 64 || kN == 128 || kN == 256);
  detail::wgmma({d, nullptr, a_descriptor, b_descriptor, kN, false, false, false, add, detail::WgmmaBytes::kInt8}, file,
                line);
}
template <int kN>
void wgmma_e4m3(float (&d)[kN / 2], uint64_t a_descriptor, uint64_t b_descriptor, bool add, LLMB_SIMT_SITE) {
  static_assert(kN == 16 || kN == 32 || kN == 64 || kN == 128);
  detail::wgmma({d, nullptr, a_descriptor, b_descriptor, kN, false, false, false, add, detail::WgmmaBytes::kE4m3}, file,
                line);
}

// ---- matrices of 16-bit elements to shared memory -----------------------------------------------------------------

inline void stmatrix_x4_trans(void* column, const uint32_t (&registers)[4], LLMB_SIMT_SITE) {
  detail::stmatrix_trans(column, registers, file, line);
}

}  // namespace llmb::cuda::ptx

#undef LLMB_SIMT_SITE
