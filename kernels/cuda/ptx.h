// The one place with PTX: asynchronous copies, matrix fragments, tensor-core products. Fragment layouts are those of
// the PTX ISA. The host SIMT layer implements the same functions.
#pragma once

#ifdef LLMB_SIMT
#include "kernels/simt/ptx.h"
#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace llmb::cuda::ptx {

__device__ __forceinline__ uint32_t shared_address(const void* address) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(address));
}

// ---- asynchronous copies ------------------------------------------------------------------------------------------

// Copies 16 bytes, or zeros where not `valid` (`from_global` is not read then but must be an address). Both aligned
// to 16.
__device__ __forceinline__ void cp_async16(void* to_shared, const void* from_global, bool valid = true) {
  const int num_bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(shared_address(to_shared)),
               "l"(__cvta_generic_to_global(from_global)), "r"(num_bytes)
               : "memory");
}

// The same of 8 or 4 bytes.
template <int kBytes>
__device__ __forceinline__ void cp_async(void* to_shared, const void* from_global, bool valid = true) {
  static_assert(kBytes == 4 || kBytes == 8);
  const int num_bytes = valid ? kBytes : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;\n" ::"r"(shared_address(to_shared)),
               "l"(__cvta_generic_to_global(from_global)), "n"(kBytes), "r"(num_bytes)
               : "memory");
}

// The copies since the last commit become a group.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

// Waits until at most kNumPending of this thread's groups have not landed. Other threads' copies need a barrier after
// it.
template <int kNumPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kNumPending) : "memory");
}

// ---- matrices -----------------------------------------------------------------------------------------------------

// Lane l gives the address (16-byte aligned, in shared memory) of row l % 8 of matrix l / 8, and gets elements
// (l / 4, 2 * (l % 4)) and the next of each 8x8 matrix of 16-bit elements; _trans: of each matrix transposed.
__device__ __forceinline__ void ldmatrix_x2(uint32_t (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];\n"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// d [16,8] += a [16,16] * b [16,8], T the elements of a and b, sums in fp32.
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  static_assert(std::is_same_v<T, __nv_bfloat16> || std::is_same_v<T, __half>);
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

// d [16,8] += a [16,32] * b [32,8] of int8, exact sums. Fragments have the bytes of mma_m16n8k16's, four numbers a
// word.
__device__ __forceinline__ void mma_m16n8k32_int8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// ---- others -------------------------------------------------------------------------------------------------------

__device__ __forceinline__ float ex2_approx(float x) {  // 2^x
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// (x & mask) | bits in one instruction, for which a compiler with two constants takes two.
__device__ __forceinline__ uint32_t and_or(uint32_t x, uint32_t mask, uint32_t bits) {
  uint32_t y;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;\n" : "=r"(y) : "r"(x), "r"(mask), "r"(bits));
  return y;
}

// The e4m3 numbers of a word's bytes, exactly: first those of bytes 0 and 1. Of compute capability 8.9 and later.
__device__ __forceinline__ void e4m3_to_f16(uint32_t bytes, uint32_t& first, uint32_t& second) {
  asm("{\n"
      ".reg .b16 low, high;\n"
      "mov.b32 {low, high}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, low;\n"
      "cvt.rn.f16x2.e4m3x2 %1, high;\n"
      "}\n"
      : "=r"(first), "=r"(second)
      : "r"(bytes));
}

// Hides where a value comes from, so that it stays in a register of a loop instead of being reckoned in every turn.
template <class T>
__device__ __forceinline__ void keep(T& x) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  if constexpr (sizeof(T) == 4) asm volatile("" : "+r"(x));
  else asm volatile("" : "+l"(x));
}

// In a kernel started by launch_ahead(). Until the kernel before it on the stream has ended and what it wrote can be
// read; every thread that reads or writes what other kernels write calls it first.
__device__ __forceinline__ void wait_for_previous_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}
// The next kernel on the stream may start once every block has called this or ended.
__device__ __forceinline__ void launch_next_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

// How most kernels begin that launch_ahead() starts.
__device__ __forceinline__ void follow_previous_grid() {
  launch_next_grid();
  wait_for_previous_grid();
}

// `num_threads` threads (a multiple of 32) meet at barrier `id` (1 to 15); bar_arrive does not wait.
__device__ __forceinline__ void bar_sync(uint32_t id, uint32_t num_threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(num_threads) : "memory");
}
__device__ __forceinline__ void bar_arrive(uint32_t id, uint32_t num_threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(id), "r"(num_threads) : "memory");
}

}  // namespace llmb::cuda::ptx

#include "kernels/cuda/ptx_sm90.h"

#endif  // LLMB_SIMT
