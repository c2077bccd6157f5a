// PTX for products of 2:4 sparse matrices, beside ptx.h. The host SIMT layer implements the same function.
#pragma once

#ifdef LLMB_SIMT
#include "kernels/simt/ptx_sparse.h"
#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace llmb::cuda::ptx {

// d [16,8] += a [16,32] * b [32,8], T the elements of a and b, sums in fp32. Of every four neighbours of a row of a two
// are there, in fragments as mma_m16n8k16's first operand; b's are two of its second operands, one behind the other.
// `places`: lanes 4 g + 2 kSelector and 4 g + 2 kSelector + 1 give those of k 0 to 15 and 16 to 31, of row g in the low
// half and of row g + 8 in the high one, four bits for every four k: the first number's place, then the second's, which
// is larger. Other lanes' are not read.
template <class T, int kSelector>
__device__ __forceinline__ void mma_sp_m16n8k32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[4],
                                                uint32_t places) {
  static_assert(std::is_same_v<T, __nv_bfloat16> || std::is_same_v<T, __half>);
  static_assert(kSelector == 0 || kSelector == 1);
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm volatile(
        "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, %13;\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(places),
          "n"(kSelector));
  } else {
    asm volatile(
        "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, %13;\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(places),
          "n"(kSelector));
  }
}

}  // namespace llmb::cuda::ptx

#endif  // LLMB_SIMT
