// convert: between element types, through fp32, rounding to nearest even: stored weights into the type of a run.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/types.h"

namespace llmb::cuda {

// Device memory, which must not overlap unless the types are equal. Throws CudaError.
void convert(const void* from, DType from_dtype,  // [n]
             void* to, DType to_dtype,            // [n]
             int64_t n, cudaStream_t stream);

}  // namespace llmb::cuda
