// The GPU that a run uses: whether it can be used at all, and what is said when it cannot.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include "base/status.h"

namespace llmb {

struct CudaDevice {
  int index = 0;
  std::string name;
  int32_t compute_capability = 0;  // 90 for 9.0
  int32_t num_sms = 0;
  int64_t total_bytes = 0;
};

// False: no driver, or one that knows of no GPU. True says nothing about whether one can be used.
bool has_cuda_device();

// Describes device `index` without using it. kDeviceError, in one line: no GPU, no such GPU, a driver older than this
// build, an architecture that is too old, no cuBLAS.
Result<CudaDevice> find_cuda_device(int index);

// The same, and makes it the calling thread's device.
Result<CudaDevice> open_cuda_device(int index);

// A CudaError, as what it means for a run: out of memory or a fault. For catch blocks.
Status status_of_cuda_error(const std::exception& error);

}  // namespace llmb
