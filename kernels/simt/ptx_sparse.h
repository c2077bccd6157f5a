// The function of kernels/cuda/ptx_sparse.h for the host SIMT layer.
//
// Products are summed as mma's (ptx.h): those of numbers that are kept, in the order of k; with zeros no product is
// made. Places that are not in order are a fault.
#pragma once

#include <cstdint>

#include "kernels/simt/intrinsics.h"

namespace llmb::cuda::ptx {

namespace detail {
template <class T>
void mma_sp_m16n8k32(float* d, const uint32_t* a, const uint32_t* b, uint32_t places, int selector, const char* file,
                     int line);
}  // namespace detail

template <class T, int kSelector>
void mma_sp_m16n8k32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[4], uint32_t places,
                     const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  static_assert(kSelector == 0 || kSelector == 1);
  detail::mma_sp_m16n8k32<T>(d, a, b, places, kSelector, file, line);
}

}  // namespace llmb::cuda::ptx
