// A thread has kUnroll 16-byte accesses in flight; a block's are contiguous.
#include "kernels/cuda/machine_limits.h"

#include "base/check.h"
#include "kernels/cuda/device.h"

namespace llmb::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 8;

__global__ void __launch_bounds__(kThreads) read_memory_kernel(const uint4* from, int64_t n, uint32_t* sink) {
  const int64_t base = int64_t{blockIdx.x} * kThreads * kUnroll + threadIdx.x;
  uint4 words[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t i = base + u * kThreads;
    words[u] = i < n ? from[i] : uint4{0, 0, 0, 0};
  }
  uint32_t sum = 0;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) sum += words[u].x + words[u].y + words[u].z + words[u].w;
  if (sum == 0x9E3779B9u) *sink = sum;
}

__global__ void __launch_bounds__(kThreads) copy_memory_kernel(const uint4* from, uint4* to, int64_t n) {
  const int64_t base = int64_t{blockIdx.x} * kThreads * kUnroll + threadIdx.x;
  uint4 words[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u)
    if (base + u * kThreads < n) words[u] = from[base + u * kThreads];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u)
    if (base + u * kThreads < n) to[base + u * kThreads] = words[u];
}

__device__ uint32_t hash(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  return x ^ (x >> 16);
}

template <class T>
__global__ void __launch_bounds__(kThreads) fill_normal_kernel(T* to, int64_t n, float deviation, uint32_t seed) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const uint32_t bits = hash(hash(seed + static_cast<uint32_t>(i >> 32)) ^ static_cast<uint32_t>(i));
  const float radius = sqrtf(-2.0f * __logf((static_cast<float>(bits >> 8) + 0.5f) * 0x1p-24f));
  const float angle = static_cast<float>(hash(bits ^ 0x9E3779B9u)) * (6.2831853f * 0x1p-32f);
  to[i] = from_float<T>(deviation * radius * __cosf(angle));
}

unsigned num_blocks(int64_t n, int64_t per_block) { return static_cast<unsigned>(ceil_div(n, per_block)); }

}  // namespace

void read_memory(const void* from, int64_t bytes, uint32_t* sink, cudaStream_t stream) {
  LLMB_CHECK(bytes % 16 == 0 && bytes > 0);
  launch({dim3(num_blocks(bytes / 16, kThreads * kUnroll)), dim3(kThreads), 0, stream}, read_memory_kernel,
         static_cast<const uint4*>(from), bytes / 16, sink);
}

void copy_memory(const void* from, void* to, int64_t bytes, cudaStream_t stream) {
  LLMB_CHECK(bytes % 16 == 0 && bytes > 0);
  launch({dim3(num_blocks(bytes / 16, kThreads * kUnroll)), dim3(kThreads), 0, stream}, copy_memory_kernel,
         static_cast<const uint4*>(from), static_cast<uint4*>(to), bytes / 16);
}

void fill_normal(void* to, DType dtype, int64_t n, float deviation, uint32_t seed, cudaStream_t stream) {
  if (n == 0) return;
  const LaunchShape shape{dim3(num_blocks(n, kThreads)), dim3(kThreads), 0, stream};
  switch (dtype) {
    case DType::kF32:
      return launch(shape, fill_normal_kernel<float>, static_cast<float*>(to), n, deviation, seed);
    case DType::kF16:
      return launch(shape, fill_normal_kernel<__half>, static_cast<__half*>(to), n, deviation, seed);
    case DType::kBF16:
      return launch(shape, fill_normal_kernel<__nv_bfloat16>, static_cast<__nv_bfloat16*>(to), n, deviation, seed);
    case DType::kI8:
    case DType::kF8:
    case DType::kI4:
      LLMB_CHECK_MSG(false, "activations are floating-point numbers");
  }
}

}  // namespace llmb::cuda
