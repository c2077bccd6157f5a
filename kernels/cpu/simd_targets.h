// Which SIMD targets the kernels are built for. Include before any Highway header, in kernels and in their tests.
//
// x86: AVX-512 (AVX3), AVX2 and scalar; Arm: NEON and scalar. The targets between (SSSE3, SSE4) only serve machines older
// than 2013, which run the scalar one, and would nearly double what the compiler has to do. On Arm the scalar one is the
// arithmetic class without fused multiply-add and the tests' oracle; SVE's vectors have no size that the compiler knows,
// and their processors have NEON, mostly at the same rate.
#pragma once

#include "hwy/detect_compiler_arch.h"

#if !defined(HWY_DISABLED_TARGETS)
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif
#if HWY_ARCH_ARM_A64 && !defined(HWY_COMPILE_ALL_ATTAINABLE)
#define HWY_COMPILE_ALL_ATTAINABLE  // else none that the processor always has a better one for
#endif
