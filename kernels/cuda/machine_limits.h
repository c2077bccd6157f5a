// A device's limits, for benches: kernels that only read or only copy memory, and random data to do it with.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/types.h"

namespace llmb::cuda {

// Reads every byte. REQUIRES: `bytes` a multiple of 16. `sink` is written where a thread's words sum to 0x9E3779B9, so
// that no compiler may leave the reads out. Throws CudaError.
void read_memory(const void* from, int64_t bytes, uint32_t* sink, cudaStream_t stream);

// REQUIRES: `bytes` a multiple of 16; no overlap. Throws CudaError.
void copy_memory(const void* from, void* to, int64_t bytes, cudaStream_t stream);

// Normal values of mean 0, by Box and Muller's method from a hash of (seed, index). Throws CudaError.
void fill_normal(void* to,  // [n]
                 DType dtype, int64_t n, float deviation, uint32_t seed, cudaStream_t stream);

}  // namespace llmb::cuda
