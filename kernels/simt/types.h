// Words built into the CUDA compiler: qualifiers, dim3, vector types. For the host SIMT
// layer.
#pragma once

#include <cstddef>
#include <cstdint>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))
// One block runs at a time, so static storage does. The build adds a call of llmb::simt::init_shared after each
// declaration in a .cu file, which fills the variable with 0xFF bytes once a block.
#define __shared__ static

struct uint3 {
  unsigned int x, y, z;
};

struct dim3 {
  unsigned int x, y, z;
  constexpr dim3(unsigned int x_ = 1, unsigned int y_ = 1, unsigned int z_ = 1) : x(x_), y(y_), z(z_) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};

#define LLMB_SIMT_VECTORS(prefix, type, align2, align4)                   \
  struct prefix##1 {                                                      \
    type x;                                                               \
  };                                                                      \
  struct alignas(align2) prefix##2 {                                      \
    type x, y;                                                            \
  };                                                                      \
  struct alignas(align4) prefix##4 {                                      \
    type x, y, z, w;                                                      \
  };                                                                      \
  constexpr prefix##1 make_##prefix##1(type x) { return {x}; }            \
  constexpr prefix##2 make_##prefix##2(type x, type y) { return {x, y}; } \
  constexpr prefix##4 make_##prefix##4(type x, type y, type z, type w) { return {x, y, z, w}; }

LLMB_SIMT_VECTORS(char, signed char, 2, 4)
LLMB_SIMT_VECTORS(uchar, unsigned char, 2, 4)
LLMB_SIMT_VECTORS(short, short, 4, 8)
LLMB_SIMT_VECTORS(ushort, unsigned short, 4, 8)
LLMB_SIMT_VECTORS(int, int, 8, 16)
LLMB_SIMT_VECTORS(uint, unsigned int, 8, 16)
LLMB_SIMT_VECTORS(longlong, long long, 16, 16)
LLMB_SIMT_VECTORS(ulonglong, unsigned long long, 16, 16)
LLMB_SIMT_VECTORS(float, float, 8, 16)
LLMB_SIMT_VECTORS(double, double, 16, 16)
#undef LLMB_SIMT_VECTORS

struct int3 {
  int x, y, z;
};
struct float3 {
  float x, y, z;
};
constexpr uint3 make_uint3(unsigned int x, unsigned int y, unsigned int z) { return {x, y, z}; }
constexpr int3 make_int3(int x, int y, int z) { return {x, y, z}; }
constexpr float3 make_float3(float x, float y, float z) { return {x, y, z}; }
