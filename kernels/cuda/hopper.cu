// One thread says for which architecture it was compiled.
#include "kernels/cuda/hopper.h"

#include "kernels/cuda/device.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/ptx.h"

namespace llmb::cuda {

namespace {

__global__ void has_hopper_code_kernel(int32_t* answer) {
#if LLMB_HAS_SM90A
  *answer = 1;
#else
  *answer = 0;
#endif
}

}  // namespace

bool has_hopper_code(cudaStream_t stream) {
  int device = 0, major = 0, minor = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "cudaDeviceGetAttribute");
  if (major != 9 || minor != 0) return false;
  const DeviceMemory on_device(sizeof(int32_t));
  launch({dim3(1), dim3(1), 0, stream}, has_hopper_code_kernel, on_device.data<int32_t>());
  int32_t answer = 0;
  check(cudaMemcpyAsync(&answer, on_device.data(), sizeof answer, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  return answer != 0;
}

}  // namespace llmb::cuda
