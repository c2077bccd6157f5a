// Stand-in for CUDA's header of the same name.
#pragma once

#include "kernels/simt/float16.h"

using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

constexpr __nv_bfloat16 __float2bfloat16(float a) { return a; }
constexpr __nv_bfloat16 __float2bfloat16_rn(float a) { return a; }
constexpr float __bfloat162float(__nv_bfloat16 a) { return a; }
constexpr __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {a, b}; }
constexpr __nv_bfloat162 __float22bfloat162_rn(float2 a) { return {a.x, a.y}; }
constexpr __nv_bfloat162 __float2bfloat162_rn(float a) { return {a, a}; }
constexpr float2 __bfloat1622float2(__nv_bfloat162 a) { return {float(a.x), float(a.y)}; }
constexpr __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
constexpr __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 a) { return {a, a}; }
constexpr __nv_bfloat16 __low2bfloat16(__nv_bfloat162 a) { return a.x; }
constexpr __nv_bfloat16 __high2bfloat16(__nv_bfloat162 a) { return a.y; }
constexpr unsigned short __bfloat16_as_ushort(__nv_bfloat16 a) { return a.bits; }
constexpr __nv_bfloat16 __ushort_as_bfloat16(unsigned short a) { return __nv_bfloat16_raw{a}; }
