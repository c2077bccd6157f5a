// PTX of Hopper only (sm_90a): mbarriers, tensor copies (TMA), warpgroup products (wgmma). Included by ptx.h,
// which the host SIMT layer replaces. Kernels that use it guard their bodies with `#if LLMB_HAS_SM90A`.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define LLMB_HAS_SM90A 1

namespace llmb::cuda::ptx {

// ---- mbarriers: 8 bytes of shared memory, 8-byte aligned ----------------------------------------------------------

// One thread initialises, then mbarrier_init_fence(), then a barrier of the block before others use it.
__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, uint32_t num_arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(shared_address(barrier)), "r"(num_arrivals)
               : "memory");
}
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(shared_address(barrier)) : "memory");
}
// The phase also waits for `num_bytes` of copies that name this barrier.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint64_t* barrier, uint32_t num_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(barrier)), "r"(num_bytes)
               : "memory");
}
// Until the phase of this parity (0, 1, 0, ...) is over. A new barrier is in phase 0, so that parity 1 counts as over.
__device__ __forceinline__ void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0)
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
}

// ---- copies from global to shared memory that an mbarrier counts --------------------------------------------------

// Makes the threads' writes to shared memory visible to tensor copies and wgmma.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

__device__ __forceinline__ void tma_prefetch(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(map) : "memory");
}

// A box of the tensor, innermost coordinate first; always counts the whole box's bytes. `to_shared` is aligned to 128
// bytes, with a 128-byte swizzle to 1024.
__device__ __forceinline__ void tma_load_2d(void* to_shared, const CUtensorMap* map, uint64_t* barrier, int32_t c0,
                                            int32_t c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];\n" ::"r"(
          shared_address(to_shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1)
      : "memory");
}

// ---- matrices of 16-bit elements to shared memory -----------------------------------------------------------------

// The inverse of ldmatrix_x4_trans: lane l has elements (l / 4, 2 * (l % 4)) and the next of each of four 8x8 matrices
// and gives the address (16-byte aligned) of column l % 8 of matrix l / 8.
__device__ __forceinline__ void stmatrix_x4_trans(void* column, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(shared_address(column)),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// ---- warpgroup products: 128 threads of four warps, the first a multiple of four ----------------------------------

// Registers may be given back or asked for by all threads of a warpgroup. The compiler heeds it only in kernels with
// __launch_bounds__(threads, 1).
template <int kCount>
__device__ __forceinline__ void registers_increase() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void registers_decrease() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kCount));
}

// Before the first wgmma, and whenever registers that it uses were touched.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
// Until at most kNumPending groups are not done; only then may their sums be read.
template <int kNumPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kNumPending) : "memory");
}

// Where a matrix of 16-bit elements lies in shared memory, in rows of 128 bytes with the 128-byte swizzle of a tensor
// copy. K-major (64 values of k in a row): `stride_bytes` from 8 rows to the next 8, usually 1024; `leading_bytes` is
// not used. For k = 16, 32, 48 start 32, 64, 96 bytes later. MN-major (64 rows of the operand side by side):
// `stride_bytes` from 8 values of k to the next 8, `leading_bytes` from 64 rows of the operand to the next 64.
__device__ __forceinline__ uint64_t wgmma_descriptor(const void* shared, uint32_t leading_bytes,
                                                     uint32_t stride_bytes) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return kSwizzle128 | uint64_t{(shared_address(shared) & 0x3FFFF) >> 4} |
         uint64_t{(leading_bytes & 0x3FFFF) >> 4} << 16 | uint64_t{(stride_bytes & 0x3FFFF) >> 4} << 32;
}

#define LLMB_R0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define LLMB_R1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define LLMB_R2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define LLMB_R3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define LLMB_R4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define LLMB_R5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define LLMB_R6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define LLMB_R7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define LLMB_R8 "%64, %65, %66, %67, %68, %69, %70, %71"
#define LLMB_R9 "%72, %73, %74, %75, %76, %77, %78, %79"
#define LLMB_R10 "%80, %81, %82, %83, %84, %85, %86, %87"
#define LLMB_R11 "%88, %89, %90, %91, %92, %93, %94, %95"
#define LLMB_R12 "%96, %97, %98, %99, %100, %101, %102, %103"
#define LLMB_R13 "%104, %105, %106, %107, %108, %109, %110, %111"
#define LLMB_R14 "%112, %113, %114, %115, %116, %117, %118, %119"
#define LLMB_R15 "%120, %121, %122, %123, %124, %125, %126, %127"

#define LLMB_S0 LLMB_R0
#define LLMB_S1 LLMB_S0 ", " LLMB_R1
#define LLMB_S2 LLMB_S1 ", " LLMB_R2
#define LLMB_S3 LLMB_S2 ", " LLMB_R3
#define LLMB_S4 LLMB_S3 ", " LLMB_R4
#define LLMB_S5 LLMB_S4 ", " LLMB_R5
#define LLMB_S6 LLMB_S5 ", " LLMB_R6
#define LLMB_S7 LLMB_S6 ", " LLMB_R7
#define LLMB_S8 LLMB_S7 ", " LLMB_R8
#define LLMB_S9 LLMB_S8 ", " LLMB_R9
#define LLMB_S10 LLMB_S9 ", " LLMB_R10
#define LLMB_S11 LLMB_S10 ", " LLMB_R11
#define LLMB_S12 LLMB_S11 ", " LLMB_R12
#define LLMB_S13 LLMB_S12 ", " LLMB_R13
#define LLMB_S14 LLMB_S13 ", " LLMB_R14
#define LLMB_S15 LLMB_S14 ", " LLMB_R15
#define LLMB_D(i)                                                                                             \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define LLMB_D0 LLMB_D(0)
#define LLMB_D1 LLMB_D0, LLMB_D(8)
#define LLMB_D2 LLMB_D1, LLMB_D(16)
#define LLMB_D3 LLMB_D2, LLMB_D(24)
#define LLMB_D4 LLMB_D3, LLMB_D(32)
#define LLMB_D5 LLMB_D4, LLMB_D(40)
#define LLMB_D6 LLMB_D5, LLMB_D(48)
#define LLMB_D7 LLMB_D6, LLMB_D(56)
#define LLMB_D8 LLMB_D7, LLMB_D(64)
#define LLMB_D9 LLMB_D8, LLMB_D(72)
#define LLMB_D10 LLMB_D9, LLMB_D(80)
#define LLMB_D11 LLMB_D10, LLMB_D(88)
#define LLMB_D12 LLMB_D11, LLMB_D(96)
#define LLMB_D13 LLMB_D12, LLMB_D(104)
#define LLMB_D14 LLMB_D13, LLMB_D(112)
#define LLMB_D15 LLMB_D14, LLMB_D(120)

// The operands behind the sums: descriptors or registers, whether to add to d, signs 1, which operands are MN-major.
#define LLMB_WGMMA_SS(n, type, sums, d_list, a, b, scale, trans_a, trans_b)                                          \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " scale                                                             \
               ", 0;\n"                                                                                              \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" sums "}, " a ", " b              \
               ", p, 1, 1, " trans_a ", " trans_b ";\n}\n"                                                           \
               : d_list                                                                                              \
               : "l"(a_descriptor), "l"(b_descriptor), "r"(static_cast<int>(add)), "n"(static_cast<int>(kMnMajorA)), \
                 "n"(static_cast<int>(kMnMajorB)))
#define LLMB_WGMMA_RS(n, type, sums, d_list, a0, a1, a2, a3, b, scale, trans_b)                                    \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " scale                                                           \
               ", 0;\n"                                                                                            \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" sums "}, {" a0 ", " a1 ", " a2 \
               ", " a3 "}, " b ", p, 1, 1, " trans_b ";\n}\n"                                                      \
               : d_list                                                                                            \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_descriptor), "r"(static_cast<int>(add)),        \
                 "n"(static_cast<int>(kMnMajorB)))

#define LLMB_WGMMA_SS_OF_SIZE(type)                                                                                   \
  if constexpr (kN == 16) LLMB_WGMMA_SS(16, type, LLMB_S0, LLMB_D0, "%8", "%9", "%10", "%11", "%12");                 \
  else if constexpr (kN == 32) LLMB_WGMMA_SS(32, type, LLMB_S1, LLMB_D1, "%16", "%17", "%18", "%19", "%20");          \
  else if constexpr (kN == 48) LLMB_WGMMA_SS(48, type, LLMB_S2, LLMB_D2, "%24", "%25", "%26", "%27", "%28");          \
  else if constexpr (kN == 64) LLMB_WGMMA_SS(64, type, LLMB_S3, LLMB_D3, "%32", "%33", "%34", "%35", "%36");          \
  else if constexpr (kN == 80) LLMB_WGMMA_SS(80, type, LLMB_S4, LLMB_D4, "%40", "%41", "%42", "%43", "%44");          \
  else if constexpr (kN == 96) LLMB_WGMMA_SS(96, type, LLMB_S5, LLMB_D5, "%48", "%49", "%50", "%51", "%52");          \
  else if constexpr (kN == 112) LLMB_WGMMA_SS(112, type, LLMB_S6, LLMB_D6, "%56", "%57", "%58", "%59", "%60");        \
  else if constexpr (kN == 128) LLMB_WGMMA_SS(128, type, LLMB_S7, LLMB_D7, "%64", "%65", "%66", "%67", "%68");        \
  else if constexpr (kN == 144) LLMB_WGMMA_SS(144, type, LLMB_S8, LLMB_D8, "%72", "%73", "%74", "%75", "%76");        \
  else if constexpr (kN == 160) LLMB_WGMMA_SS(160, type, LLMB_S9, LLMB_D9, "%80", "%81", "%82", "%83", "%84");        \
  else if constexpr (kN == 176) LLMB_WGMMA_SS(176, type, LLMB_S10, LLMB_D10, "%88", "%89", "%90", "%91", "%92");      \
  else if constexpr (kN == 192) LLMB_WGMMA_SS(192, type, LLMB_S11, LLMB_D11, "%96", "%97", "%98", "%99", "%100");     \
  else if constexpr (kN == 208) LLMB_WGMMA_SS(208, type, LLMB_S12, LLMB_D12, "%104", "%105", "%106", "%107", "%108"); \
  else if constexpr (kN == 224) LLMB_WGMMA_SS(224, type, LLMB_S13, LLMB_D13, "%112", "%113", "%114", "%115", "%116"); \
  else if constexpr (kN == 240) LLMB_WGMMA_SS(240, type, LLMB_S14, LLMB_D14, "%120", "%121", "%122", "%123", "%124"); \
  else if constexpr (kN == 256) LLMB_WGMMA_SS(256, type, LLMB_S15, LLMB_D15, "%128", "%129", "%130", "%131", "%132");

#define LLMB_WGMMA_RS_OF_SIZE(type)                                                                                 \
  if constexpr (kN == 16) LLMB_WGMMA_RS(16, type, LLMB_S0, LLMB_D0, "%8", "%9", "%10", "%11", "%12", "%13", "%14"); \
  else if constexpr (kN == 32)                                                                                      \
    LLMB_WGMMA_RS(32, type, LLMB_S1, LLMB_D1, "%16", "%17", "%18", "%19", "%20", "%21", "%22");                     \
  else if constexpr (kN == 48)                                                                                      \
    LLMB_WGMMA_RS(48, type, LLMB_S2, LLMB_D2, "%24", "%25", "%26", "%27", "%28", "%29", "%30");                     \
  else if constexpr (kN == 64)                                                                                      \
    LLMB_WGMMA_RS(64, type, LLMB_S3, LLMB_D3, "%32", "%33", "%34", "%35", "%36", "%37", "%38");                     \
  else if constexpr (kN == 80)                                                                                      \
    LLMB_WGMMA_RS(80, type, LLMB_S4, LLMB_D4, "%40", "%41", "%42", "%43", "%44", "%45", "%46");                     \
  else if constexpr (kN == 96)                                                                                      \
    LLMB_WGMMA_RS(96, type, LLMB_S5, LLMB_D5, "%48", "%49", "%50", "%51", "%52", "%53", "%54");                     \
  else if constexpr (kN == 112)                                                                                     \
    LLMB_WGMMA_RS(112, type, LLMB_S6, LLMB_D6, "%56", "%57", "%58", "%59", "%60", "%61", "%62");                    \
  else if constexpr (kN == 128)                                                                                     \
    LLMB_WGMMA_RS(128, type, LLMB_S7, LLMB_D7, "%64", "%65", "%66", "%67", "%68", "%69", "%70");                    \
  else if constexpr (kN == 144)                                                                                     \
    LLMB_WGMMA_RS(144, type, LLMB_S8, LLMB_D8, "%72", "%73", "%74", "%75", "%76", "%77", "%78");                    \
  else if constexpr (kN == 160)                                                                                     \
    LLMB_WGMMA_RS(160, type, LLMB_S9, LLMB_D9, "%80", "%81", "%82", "%83", "%84", "%85", "%86");                    \
  else if constexpr (kN == 176)                                                                                     \
    LLMB_WGMMA_RS(176, type, LLMB_S10, LLMB_D10, "%88", "%89", "%90", "%91", "%92", "%93", "%94");                  \
  else if constexpr (kN == 192)                                                                                     \
    LLMB_WGMMA_RS(192, type, LLMB_S11, LLMB_D11, "%96", "%97", "%98", "%99", "%100", "%101", "%102");               \
  else if constexpr (kN == 208)                                                                                     \
    LLMB_WGMMA_RS(208, type, LLMB_S12, LLMB_D12, "%104", "%105", "%106", "%107", "%108", "%109", "%110");           \
  else if constexpr (kN == 224)                                                                                     \
    LLMB_WGMMA_RS(224, type, LLMB_S13, LLMB_D13, "%112", "%113", "%114", "%115", "%116", "%117", "%118");           \
  else if constexpr (kN == 240)                                                                                     \
    LLMB_WGMMA_RS(240, type, LLMB_S14, LLMB_D14, "%120", "%121", "%122", "%123", "%124", "%125", "%126");           \
  else if constexpr (kN == 256)                                                                                     \
    LLMB_WGMMA_RS(256, type, LLMB_S15, LLMB_D15, "%128", "%129", "%130", "%131", "%132", "%133", "%134");

// d [64, kN] (+)= a [64, 16] * b [16, kN], T the elements of a and b, sums in fp32; added to d where `add`. Thread t of
// the warpgroup holds rows 16 * (t / 32) + t % 32 / 4 and the 8th after it: d[4 * j + 2 * i + c] is row + 8 * i, column
// 8 * j + 2 * (t % 4) + c. kN is a multiple of 16 up to 256.
template <class T, int kN, bool kMnMajorA = false, bool kMnMajorB = false>
__device__ __forceinline__ void wgmma(float (&d)[kN / 2], uint64_t a_descriptor, uint64_t b_descriptor, bool add) {
  static_assert(kN % 16 == 0 && kN >= 16 && kN <= 256);
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    LLMB_WGMMA_SS_OF_SIZE("bf16")
  } else {
    static_assert(std::is_same_v<T, __half>);
    LLMB_WGMMA_SS_OF_SIZE("f16")
  }
}
// The same with a in registers, laid out as for mma_m16n8k16, each warp its 16 rows.
template <class T, int kN, bool kMnMajorB = false>
__device__ __forceinline__ void wgmma(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b_descriptor, bool add) {
  static_assert(kN % 16 == 0 && kN >= 16 && kN <= 256);
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    LLMB_WGMMA_RS_OF_SIZE("bf16")
  } else {
    static_assert(std::is_same_v<T, __half>);
    LLMB_WGMMA_RS_OF_SIZE("f16")
  }
}

// ---- warpgroup products of bytes ----------------------------------------------------------------------------------

#define LLMB_I8(i)                                                                                            \
  "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]), "+r"(d[i + 6]), \
      "+r"(d[i + 7])
#define LLMB_I16(i) LLMB_I8(i), LLMB_I8(i + 8)
#define LLMB_I32(i) LLMB_I16(i), LLMB_I16(i + 16)
#define LLMB_I64(i) LLMB_I32(i), LLMB_I32(i + 32)
#define LLMB_I128(i) LLMB_I64(i), LLMB_I64(i + 64)

#define LLMB_WGMMA_BYTES(n, types, sums, d_list, a, b, scale, signs)                                             \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " scale                                                         \
               ", 0;\n"                                                                                          \
               "wgmma.mma_async.sync.aligned.m64n" #n "k32." types " {" sums "}, " a ", " b ", p" signs ";\n}\n" \
               : d_list                                                                                          \
               : "l"(a_descriptor), "l"(b_descriptor), "r"(static_cast<int>(add)))

// As wgmma() with both operands K-major in shared memory, of bytes: a row of 128 bytes is 128 values of k, and a
// product takes 32 of them. Of int8, exact sums in 32 bits. kN: 16, 32, 64, 128 or 256.
template <int kN>
__device__ __forceinline__ void wgmma_int8(int32_t (&d)[kN / 2], uint64_t a_descriptor, uint64_t b_descriptor,
                                           bool add) {
  static_assert(kN == 16 || kN == 32 || kN == 64 || kN == 128 || kN == 256);
  if constexpr (kN == 16) LLMB_WGMMA_BYTES(16, "s32.s8.s8", LLMB_S0, LLMB_I8(0), "%8", "%9", "%10", "");
  else if constexpr (kN == 32) LLMB_WGMMA_BYTES(32, "s32.s8.s8", LLMB_S1, LLMB_I16(0), "%16", "%17", "%18", "");
  else if constexpr (kN == 64) LLMB_WGMMA_BYTES(64, "s32.s8.s8", LLMB_S3, LLMB_I32(0), "%32", "%33", "%34", "");
  else if constexpr (kN == 128) LLMB_WGMMA_BYTES(128, "s32.s8.s8", LLMB_S7, LLMB_I64(0), "%64", "%65", "%66", "");
  else LLMB_WGMMA_BYTES(256, "s32.s8.s8", LLMB_S15, LLMB_I128(0), "%128", "%129", "%130", "");
}

// The same of e4m3. Within one product and those that add to it, Hopper keeps some 14 bits of a sum: long sums are cut,
// and their parts added in fp32. kN: 16, 32, 64 or 128.
template <int kN>
__device__ __forceinline__ void wgmma_e4m3(float (&d)[kN / 2], uint64_t a_descriptor, uint64_t b_descriptor, bool add) {
  static_assert(kN == 16 || kN == 32 || kN == 64 || kN == 128);
  if constexpr (kN == 16) LLMB_WGMMA_BYTES(16, "f32.e4m3.e4m3", LLMB_S0, LLMB_D0, "%8", "%9", "%10", ", 1, 1");
  else if constexpr (kN == 32) LLMB_WGMMA_BYTES(32, "f32.e4m3.e4m3", LLMB_S1, LLMB_D1, "%16", "%17", "%18", ", 1, 1");
  else if constexpr (kN == 64) LLMB_WGMMA_BYTES(64, "f32.e4m3.e4m3", LLMB_S3, LLMB_D3, "%32", "%33", "%34", ", 1, 1");
  else LLMB_WGMMA_BYTES(128, "f32.e4m3.e4m3", LLMB_S7, LLMB_D7, "%64", "%65", "%66", ", 1, 1");
}

#undef LLMB_I8
#undef LLMB_I16
#undef LLMB_I32
#undef LLMB_I64
#undef LLMB_I128
#undef LLMB_WGMMA_BYTES

#undef LLMB_R0
#undef LLMB_S0
#undef LLMB_D0
#undef LLMB_R1
#undef LLMB_S1
#undef LLMB_D1
#undef LLMB_R2
#undef LLMB_S2
#undef LLMB_D2
#undef LLMB_R3
#undef LLMB_S3
#undef LLMB_D3
#undef LLMB_R4
#undef LLMB_S4
#undef LLMB_D4
#undef LLMB_R5
#undef LLMB_S5
#undef LLMB_D5
#undef LLMB_R6
#undef LLMB_S6
#undef LLMB_D6
#undef LLMB_R7
#undef LLMB_S7
#undef LLMB_D7
#undef LLMB_R8
#undef LLMB_S8
#undef LLMB_D8
#undef LLMB_R9
#undef LLMB_S9
#undef LLMB_D9
#undef LLMB_R10
#undef LLMB_S10
#undef LLMB_D10
#undef LLMB_R11
#undef LLMB_S11
#undef LLMB_D11
#undef LLMB_R12
#undef LLMB_S12
#undef LLMB_D12
#undef LLMB_R13
#undef LLMB_S13
#undef LLMB_D13
#undef LLMB_R14
#undef LLMB_S14
#undef LLMB_D14
#undef LLMB_R15
#undef LLMB_S15
#undef LLMB_D15
#undef LLMB_D
#undef LLMB_WGMMA_SS
#undef LLMB_WGMMA_RS
#undef LLMB_WGMMA_SS_OF_SIZE
#undef LLMB_WGMMA_RS_OF_SIZE

}  // namespace llmb::cuda::ptx

#endif  // __CUDA_ARCH_FEAT_SM90_ALL
