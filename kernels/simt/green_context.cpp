#include "kernels/simt/green_context.h"

#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "cudaTypedefs.h"
#include "kernels/simt/stream.h"

struct CUdevResourceDesc_st {
  unsigned num_sms = 0;
};

struct CUgreenCtx_st {
  unsigned num_sms = 0;
};

namespace llmb::simt {

namespace {

struct GreenContexts {
  int failing_call = -1, num_calls = 0;
  std::map<CUgreenCtx, std::unique_ptr<CUgreenCtx_st>> made;
  CUdevResourceDesc_st described;
};

GreenContexts& state() {
  static GreenContexts instance;
  return instance;
}

bool fails() { return state().num_calls++ == state().failing_call; }

unsigned num_device_sms() {
  int count = 0;
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0);
  return static_cast<unsigned>(count);
}

CUresult get_resource(CUdevice, CUdevResource* resource, CUdevResourceType) {
  const auto lock = lock_state();
  if (fails()) return CUDA_ERROR_INVALID_VALUE;
  *resource = {CU_DEV_RESOURCE_TYPE_SM, {num_device_sms(), 1, 1}};
  return CUDA_SUCCESS;
}

CUresult split(CUdevResource* result, unsigned* num_groups, const CUdevResource* input, CUdevResource* remaining,
               unsigned, unsigned min_count) {
  const auto lock = lock_state();
  if (fails() || min_count == 0 || min_count > input->sm.smCount) return CUDA_ERROR_INVALID_VALUE;
  *num_groups = 1;
  *result = *remaining = *input;
  result->sm.smCount = min_count;
  remaining->sm.smCount = input->sm.smCount - min_count;
  return CUDA_SUCCESS;
}

CUresult describe(CUdevResourceDesc* description, CUdevResource* resource, unsigned) {
  const auto lock = lock_state();
  if (fails()) return CUDA_ERROR_INVALID_VALUE;
  state().described.num_sms = resource->sm.smCount;
  *description = &state().described;
  return CUDA_SUCCESS;
}

CUresult create(CUgreenCtx* context, CUdevResourceDesc description, CUdevice, unsigned flags) {
  const auto lock = lock_state();
  if (fails() || flags != CU_GREEN_CTX_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_unique<CUgreenCtx_st>();
  made->num_sms = description->num_sms;
  *context = made.get();
  state().made[*context] = std::move(made);
  return CUDA_SUCCESS;
}

CUresult destroy(CUgreenCtx context) {
  const auto lock = lock_state();
  return state().made.erase(context) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult make_stream(CUstream* stream, CUgreenCtx, unsigned flags, int) {
  const auto lock = lock_state();
  if (fails() || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  return cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking) == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

void* green_context_entry(const char* name) {
  const std::pair<const char*, void*> entries[] = {
      {"cuDeviceGetDevResource", reinterpret_cast<void*>(&get_resource)},
      {"cuDevSmResourceSplitByCount", reinterpret_cast<void*>(&split)},
      {"cuDevResourceGenerateDesc", reinterpret_cast<void*>(&describe)},
      {"cuGreenCtxCreate", reinterpret_cast<void*>(&create)},
      {"cuGreenCtxDestroy", reinterpret_cast<void*>(&destroy)},
      {"cuGreenCtxStreamCreate", reinterpret_cast<void*>(&make_stream)},
  };
  for (const auto& [known, function] : entries)
    if (std::strcmp(name, known) == 0) return function;
  return nullptr;
}

void fail_green_context_call(int call) {
  const auto lock = lock_state();
  state().failing_call = call;
  state().num_calls = 0;
}

int num_green_contexts() {
  const auto lock = lock_state();
  return static_cast<int>(state().made.size());
}

int32_t num_green_sms() {
  const auto lock = lock_state();
  unsigned count = 0;
  for (const auto& [context, made] : state().made) count += made->num_sms;
  return static_cast<int32_t>(count);
}

}  // namespace llmb::simt
