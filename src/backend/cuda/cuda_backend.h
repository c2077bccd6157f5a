// The backend that computes on an NVIDIA GPU. Results are deterministic in the sense of
// LoadOptions::Cuda::deterministic.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/cuda/device.h"

namespace llmb {

// `index`: of the GPU, as CUDA counts them.
std::unique_ptr<Backend> make_cuda_backend(int index);

}  // namespace llmb
