#include "backend/cuda/device.h"

#include <cuda_runtime.h>

#include "kernels/cuda/cublas_lt.h"
#include "kernels/cuda/error.h"

namespace llmb {

namespace {

constexpr int kOldestComputeCapability = 80;

std::string version(int number) { return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10); }

Status no_gpu(const std::string& why) { return device_error(why + "; --device cpu runs without a GPU"); }

Status describe_failure(cudaError_t code) {
  if (code == cudaErrorNoDevice) return no_gpu("no NVIDIA GPU was found");
  if (code == cudaErrorInsufficientDriver) {
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (driver == 0) return no_gpu("no NVIDIA driver is installed");
    return no_gpu("the NVIDIA driver is too old: it supports CUDA " + version(driver) + ", this build needs " +
                  version(runtime));
  }
  return no_gpu(std::string("the GPU cannot be used: ") + cudaGetErrorString(code));
}

}  // namespace

bool has_cuda_device() {
  int count = 0, driver = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess) return count > 0;
  cudaDriverGetVersion(&driver);
  return code != cudaErrorNoDevice && driver > 0;
}

Result<CudaDevice> find_cuda_device(int index) {
  int count = 0;
  cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess) return describe_failure(code);
  if (count == 0) return describe_failure(cudaErrorNoDevice);
  if (index < 0 || index >= count)
    return device_error("there is no GPU " + std::to_string(index) + ": this machine has " + std::to_string(count) +
                        ", counted from 0");
  cudaDeviceProp properties;
  code = cudaGetDeviceProperties(&properties, index);
  if (code != cudaSuccess) return describe_failure(code);
  CudaDevice device;
  device.index = index;
  device.name = properties.name;
  device.compute_capability = properties.major * 10 + properties.minor;
  device.num_sms = properties.multiProcessorCount;
  device.total_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  if (device.compute_capability < kOldestComputeCapability)
    return no_gpu("GPU " + std::to_string(index) + " (" + device.name + ", compute capability " +
                  std::to_string(properties.major) + "." + std::to_string(properties.minor) +
                  ") is too old: 8.0 or newer is needed");
  if (!cuda::cublas_lt_problem().empty()) return no_gpu(cuda::cublas_lt_problem());
  return device;
}

Result<CudaDevice> open_cuda_device(int index) {
  LLMB_ASSIGN_OR_RETURN(CudaDevice device, find_cuda_device(index));
  cudaError_t code = cudaSetDevice(index);
  if (code == cudaSuccess) code = cudaFree(nullptr);  // creates the context
  if (code != cudaSuccess) return describe_failure(code);
  return device;
}

Status status_of_cuda_error(const std::exception& error) {
  const auto* cuda = dynamic_cast<const cuda::CudaError*>(&error);
  if (cuda == nullptr) return internal_error(error.what());
  if (cuda->code() == cudaErrorMemoryAllocation) return resource_exhausted(std::string("GPU memory: ") + error.what());
  if (cuda->code() == cudaErrorNoKernelImageForDevice || cuda->code() == cudaErrorUnsupportedPtxVersion)
    return no_gpu("this build has no code for the GPU's architecture");
  return device_error(std::string("GPU: ") + error.what());
}

}  // namespace llmb
