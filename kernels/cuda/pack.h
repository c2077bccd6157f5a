// Runs of consecutive values moved as one: 16-byte accesses where the run is 16 bytes or more. Device code only.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.h"

namespace llmb::cuda {

// The widest run that the vector paths use: one 16-byte access of a 16-bit type, two of fp32.
constexpr int kPackWidth = 8;

template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth < 16 ? sizeof(T) * kWidth : 16) Pack {
  T values[kWidth];
};

// REQUIRES: `from` aligned to the pack.
template <int kWidth, class T>
__device__ inline void load_floats(const T* from, float (&to)[kWidth]) {
  const Pack<T, kWidth> pack = *reinterpret_cast<const Pack<T, kWidth>*>(from);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) to[i] = to_float(pack.values[i]);
}

// REQUIRES: `to` aligned to the pack.
template <int kWidth, class T>
__device__ inline void store_floats(const float (&from)[kWidth], T* to) {
  Pack<T, kWidth> pack;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) pack.values[i] = from_float<T>(from[i]);
  *reinterpret_cast<Pack<T, kWidth>*>(to) = pack;
}

template <int kWidth, class T>
__device__ inline void copy_pack(const T* from, T* to) {
  *reinterpret_cast<Pack<T, kWidth>*>(to) = *reinterpret_cast<const Pack<T, kWidth>*>(from);
}

// Whether packs of kPackWidth may be used: every row of `width` values starts at a multiple of 16 bytes in all arrays.
template <class... Pointers>
bool can_pack(int64_t width, const Pointers*... arrays) {
  return width % kPackWidth == 0 && ((reinterpret_cast<uintptr_t>(arrays) % 16 == 0) && ...);
}

}  // namespace llmb::cuda
