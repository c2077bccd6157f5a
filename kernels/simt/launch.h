// How kernels/cuda/device.h starts a kernel in the host SIMT layer.
#pragma once

#include <functional>

#include "kernels/simt/block.h"
#include "kernels/simt/runtime.h"

namespace llmb::cuda::simt {

using ::llmb::simt::dynamic_shared_memory;

// Queues the grid on `stream`; it runs when somebody waits for it.
cudaError_t launch_kernel(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                          std::function<void()> thread_body);

}  // namespace llmb::cuda::simt
