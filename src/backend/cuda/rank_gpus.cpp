#include "backend/cuda/rank_gpus.h"

#include <cuda_runtime.h>

#include <string>

#include "backend/cuda/device.h"
#include "kernels/cuda/nccl.h"

namespace llmb {

Status find_rank_gpus(int num_ranks) {
  LLMB_ASSIGN_OR_RETURN(const CudaDevice first, find_cuda_device(0));
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
  if (count < num_ranks)
    return device_error(std::to_string(num_ranks) + " ranks need a GPU each, and this machine has " +
                        std::to_string(count) + " that can be seen (CUDA_VISIBLE_DEVICES)");
  for (int i = 1; i < num_ranks; ++i) {
    LLMB_ASSIGN_OR_RETURN(const CudaDevice other, find_cuda_device(i));
    if (other.name != first.name)
      return device_error("ranks need equal GPUs; GPU " + std::to_string(i) + " is a " + other.name + ", GPU 0 a " +
                          first.name);
  }
  return cuda::nccl_problem().empty() ? Status() : device_error(cuda::nccl_problem());
}

}  // namespace llmb
