// Which SIMD targets the kernels are built for. Include before any Highway header, in kernels and in their tests.
//
// x86: AVX-512 (AVX3), AVX2 and scalar; Arm: NEON. The targets between (SSSE3, SSE4) only serve machines older than
// 2013, which run the scalar one, and would nearly double what the compiler has to do.
#pragma once

#include "hwy/detect_compiler_arch.h"

#if !defined(HWY_DISABLED_TARGETS)
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#endif
