// Stand-in for CUDA's header of the same name.
#pragma once

#include "kernels/simt/float16.h"

using half = __half;
using half2 = __half2;

constexpr __half __float2half(float a) { return a; }
constexpr __half __float2half_rn(float a) { return a; }
constexpr float __half2float(__half a) { return a; }
constexpr __half2 __floats2half2_rn(float a, float b) { return {a, b}; }
constexpr __half2 __float22half2_rn(float2 a) { return {a.x, a.y}; }
constexpr __half2 __float2half2_rn(float a) { return {a, a}; }
constexpr float2 __half22float2(__half2 a) { return {float(a.x), float(a.y)}; }
constexpr __half2 __halves2half2(__half a, __half b) { return {a, b}; }
constexpr __half2 __half2half2(__half a) { return {a, a}; }
constexpr __half __low2half(__half2 a) { return a.x; }
constexpr __half __high2half(__half2 a) { return a.y; }
constexpr unsigned short __half_as_ushort(__half a) { return a.bits; }
constexpr __half __ushort_as_half(unsigned short a) { return __half_raw{a}; }
