// Whether kernels for Hopper may be used: those of tensor copies and warpgroup products, whose code is of sm_90a alone.
#pragma once

#include <cuda_runtime.h>

namespace llmb::cuda {

// Whether the current device has compute capability 9.0 and this program holds sm_90a code that it runs. Waits for the
// device. Throws CudaError.
bool has_hopper_code(cudaStream_t stream);

}  // namespace llmb::cuda
