#include "kernels/cuda/divided_device.h"

#include <cudaTypedefs.h>

#include "kernels/cuda/error.h"

namespace llmb::cuda {

namespace {

// From the driver itself, as in tensor_map.cpp. Null: it is older.
template <typename Function>
Function entry(const char* name, unsigned since) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t code = cudaGetDriverEntryPointByVersion(name, &function, since, cudaEnableDefault, &result);
  if (code == cudaSuccess && result == cudaDriverEntryPointSuccess) return reinterpret_cast<Function>(function);
  cudaGetLastError();  // nothing has failed
  return nullptr;
}

struct Driver {
  PFN_cuDeviceGetDevResource_v12040 get_resource = entry<PFN_cuDeviceGetDevResource_v12040>("cuDeviceGetDevResource", 12040);
  PFN_cuDevSmResourceSplitByCount_v12040 split =
      entry<PFN_cuDevSmResourceSplitByCount_v12040>("cuDevSmResourceSplitByCount", 12040);
  PFN_cuDevResourceGenerateDesc_v12040 describe =
      entry<PFN_cuDevResourceGenerateDesc_v12040>("cuDevResourceGenerateDesc", 12040);
  PFN_cuGreenCtxCreate_v12040 create = entry<PFN_cuGreenCtxCreate_v12040>("cuGreenCtxCreate", 12040);
  PFN_cuGreenCtxDestroy_v12040 destroy = entry<PFN_cuGreenCtxDestroy_v12040>("cuGreenCtxDestroy", 12040);
  PFN_cuGreenCtxStreamCreate_v12050 make_stream =
      entry<PFN_cuGreenCtxStreamCreate_v12050>("cuGreenCtxStreamCreate", 12050);

  bool is_complete() const {
    return get_resource != nullptr && split != nullptr && describe != nullptr && create != nullptr &&
           destroy != nullptr && make_stream != nullptr;
  }
};

const Driver& driver() {
  static const Driver instance;
  return instance;
}

}  // namespace

DividedDevice::DividedDevice(int index, int32_t num_sms, int32_t second_sms) {
  is_divided_ = driver().is_complete() && divide(index, second_sms);
  if (is_divided_) return;
  release();
  for (Part& part : parts_) {
    const cudaError_t code = cudaStreamCreateWithFlags(&part.stream, cudaStreamNonBlocking);
    if (code != cudaSuccess) release();
    check(code, "cudaStreamCreateWithFlags");
    part.num_sms = num_sms;
  }
}

DividedDevice::~DividedDevice() { release(); }

bool DividedDevice::divide(int index, int32_t second_sms) {
  CUdevResource all, group, rest;
  unsigned num_groups = 1;
  if (driver().get_resource(index, &all, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS) return false;
  if (driver().split(&group, &num_groups, &all, &rest, 0, static_cast<unsigned>(second_sms)) != CUDA_SUCCESS) return false;
  if (num_groups != 1 || rest.sm.smCount == 0) return false;
  CUdevResource* const resources[] = {&rest, &group};
  for (int i = 0; i < 2; ++i) {
    CUdevResourceDesc description = nullptr;
    CUgreenCtx context = nullptr;
    CUstream stream = nullptr;
    if (driver().describe(&description, resources[i], 1) != CUDA_SUCCESS) return false;
    if (driver().create(&context, description, index, CU_GREEN_CTX_DEFAULT_STREAM) != CUDA_SUCCESS) return false;
    parts_[i].context = context;
    if (driver().make_stream(&stream, context, CU_STREAM_NON_BLOCKING, 0) != CUDA_SUCCESS) return false;
    parts_[i].stream = stream;
    parts_[i].num_sms = static_cast<int32_t>(resources[i]->sm.smCount);
  }
  return true;
}

void DividedDevice::release() {
  for (Part& part : parts_) {
    if (part.stream != nullptr) cudaStreamDestroy(part.stream);
    if (part.context != nullptr) driver().destroy(static_cast<CUgreenCtx>(part.context));
    part = {};
  }
}

}  // namespace llmb::cuda
