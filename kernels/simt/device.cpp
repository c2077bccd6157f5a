#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include "kernels/simt/device_state.h"
#include "kernels/simt/settings.h"
#include "kernels/simt/stream.h"
#include "kernels/simt/stream_order.h"
#include "kernels/simt/symbol_name.h"

namespace llmb::simt {

namespace {

constexpr size_t kDefaultSharedBytes = 48 << 10;
constexpr size_t kMaxSharedBytes = 227 << 10;
constexpr size_t kMultiprocessorSharedBytes = 228 << 10;
constexpr size_t kReservedSharedBytes = 1 << 10;  // of every block, by the system
constexpr int kMultiprocessorThreads = 2048;
constexpr int kMultiprocessorBlocks = 32;

struct Device {
  std::recursive_mutex mutex;
  uint64_t seed = 0;
  uint64_t num_launches = 0;
  uint64_t num_calls = 0;
  uint64_t failing_call = 0;  // 0: none
  cudaError_t failure = cudaSuccess;
  bool failure_stays = false;
  uint32_t eager_percent = 0, interleaved_percent = 0;
  uint64_t eager_draws = 0, order_draws = 0;
  size_t num_bytes = size_t{8} << 30;
  int major = 9;
  int minor = 0;
  int num_multiprocessors = 4;
  int num_devices = 1;
  std::map<const void*, size_t> shared_bytes;  // asked for by cudaFuncSetAttribute
  std::map<const void*, uint64_t> runs;        // of each kernel

  Device() {
    if (const char* text = std::getenv("LLMB_SIMT_SEED")) seed = std::strtoull(text, nullptr, 10);
  }
};

Device& device() {
  static Device instance;
  return instance;
}

thread_local cudaError_t t_last_error = cudaSuccess;

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

Call::Call() : lock_(device().mutex), injected_(cudaSuccess) {
  Device& state = device();
  ++state.num_calls;
  if (state.failing_call == 0 || state.num_calls < state.failing_call) return;
  if (state.num_calls == state.failing_call || state.failure_stays) injected_ = state.failure;
}

std::unique_lock<std::recursive_mutex> lock_state() { return std::unique_lock(device().mutex); }

cudaError_t Call::result(cudaError_t error) {
  if (error != cudaSuccess) t_last_error = error;
  return error;
}

void set_seed(uint64_t seed) {
  const std::lock_guard lock(device().mutex);
  device().seed = seed;
  device().num_launches = device().eager_draws = device().order_draws = 0;
}

uint64_t next_launch_seed() { return mix(device().seed * 0x9E3779B97F4A7C15u + device().num_launches++); }

void fail_call_after(uint64_t num_calls, cudaError_t error, bool sticky) {
  const std::lock_guard lock(device().mutex);
  device().failing_call = device().num_calls + num_calls + 1;
  device().failure = error;
  device().failure_stays = sticky;
}

void clear_failure() {
  const std::lock_guard lock(device().mutex);
  device().failing_call = 0;
}

uint64_t num_calls() {
  const std::lock_guard lock(device().mutex);
  return device().num_calls;
}

void count_run(const void* kernel) { ++device().runs[kernel]; }

uint64_t num_runs(const std::string& part) {
  const std::lock_guard lock(device().mutex);
  uint64_t sum = 0;
  for (const auto& [kernel, count] : device().runs)
    if (symbol_name(kernel).find(part) != std::string::npos) sum += count;
  return sum;
}

void set_device_bytes(size_t num_bytes) {
  const std::lock_guard lock(device().mutex);
  device().num_bytes = num_bytes;
}

void set_eager_percent(uint32_t percent) {
  const std::lock_guard lock(device().mutex);
  device().eager_percent = percent;
}

void set_compute_capability(int major, int minor) {
  const std::lock_guard lock(device().mutex);
  device().major = major;
  device().minor = minor;
}

void set_num_multiprocessors(int count) {
  const std::lock_guard lock(device().mutex);
  device().num_multiprocessors = count;
}

void set_num_devices(int count) {
  const std::lock_guard lock(device().mutex);
  device().num_devices = count;
}

bool draw_eager() {
  Device& state = device();
  return state.eager_percent > 0 && mix(~state.seed + state.eager_draws++) % 100 < state.eager_percent;
}

void set_interleaving(uint32_t percent) {
  const std::lock_guard lock(device().mutex);
  device().interleaved_percent = percent;
}

uint64_t draw_below(uint64_t count) {
  Device& state = device();
  return mix(state.seed * 0xD1B54A32D192ED03u + state.order_draws++) % count;
}

bool draw_interleaved() {
  const uint32_t percent = device().interleaved_percent;
  return percent > 0 && draw_below(100) < percent;
}

size_t device_bytes() { return device().num_bytes; }
int num_devices() { return device().num_devices; }

size_t allowed_shared_bytes(const void* kernel) {
  const auto found = device().shared_bytes.find(kernel);
  return found == device().shared_bytes.end() ? kDefaultSharedBytes : std::max(kDefaultSharedBytes, found->second);
}

}  // namespace llmb::simt

using llmb::simt::Call;
using llmb::simt::device;

namespace {

struct ErrorText {
  cudaError_t code;
  const char* name;
  const char* text;
};

constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver", "the driver is older than the runtime"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable", "the device is busy or unavailable"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice", "no kernel image for this device"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorUnsupportedPtxVersion, "cudaErrorUnsupportedPtxVersion", "PTX of an unsupported toolchain"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorSymbolNotFound, "cudaErrorSymbolNotFound", "named symbol not found"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported", "not permitted while capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated", "capture failed earlier"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched", "capture was not begun in this stream"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined", "a captured stream was not joined"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation", "dependency on uncaptured work"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit", "dependency through the default stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent", "the event was last recorded in a capturing stream"},
    {cudaErrorGraphExecUpdateFailure, "cudaErrorGraphExecUpdateFailure", "the graph update was not performed"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

const ErrorText& error_text(cudaError_t error) {
  for (const ErrorText& entry : kErrors) {
    if (entry.code == error) return entry;
  }
  return kErrors[std::size(kErrors) - 1];
}

}  // namespace

const char* cudaGetErrorName(cudaError_t error) { return error_text(error).name; }
const char* cudaGetErrorString(cudaError_t error) { return error_text(error).text; }
cudaError_t cudaPeekAtLastError() { return llmb::simt::t_last_error; }
cudaError_t cudaGetLastError() { return std::exchange(llmb::simt::t_last_error, cudaSuccess); }

cudaError_t cudaGetDeviceCount(int* count) {
  const Call call;
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  *count = device().num_devices;
  return Call::result(*count == 0 ? cudaErrorNoDevice : cudaSuccess);
}

cudaError_t cudaGetDevice(int* number) {
  const Call call;
  *number = 0;
  return Call::result(call.injected());
}

cudaError_t cudaSetDevice(int number) {
  const Call call;
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  return Call::result(number >= 0 && number < device().num_devices ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int number) {
  const Call call;
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  if (number < 0 || number >= device().num_devices) return Call::result(cudaErrorInvalidDevice);
  *properties = {};
  std::strcpy(properties->name, "host SIMT layer");
  properties->totalGlobalMem = device().num_bytes;
  properties->sharedMemPerBlock = llmb::simt::kDefaultSharedBytes;
  properties->sharedMemPerBlockOptin = llmb::simt::kMaxSharedBytes;
  properties->sharedMemPerMultiprocessor = llmb::simt::kMultiprocessorSharedBytes;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = llmb::simt::kMultiprocessorThreads;
  properties->major = device().major;
  properties->minor = device().minor;
  properties->multiProcessorCount = device().num_multiprocessors;
  properties->l2CacheSize = 1 << 20;  // less than any device has: it is cleared often
  properties->memoryBusWidth = 5120;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int number) {
  cudaDeviceProp properties;
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, number); error != cudaSuccess) return error;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = properties.maxThreadsPerBlock;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(properties.sharedMemPerBlock);
      break;
    case cudaDevAttrWarpSize:
      *value = properties.warpSize;
      break;
    case cudaDevAttrClockRate:
      *value = 1'980'000;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      break;
    case cudaDevAttrMemoryClockRate:
      *value = 3'201'000;
      break;
    case cudaDevAttrGlobalMemoryBusWidth:
      *value = properties.memoryBusWidth;
      break;
    case cudaDevAttrL2CacheSize:
      *value = properties.l2CacheSize;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = properties.maxThreadsPerMultiProcessor;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(properties.sharedMemPerMultiprocessor);
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      break;
    default:
      return Call::result(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  const Call call;
  *version = 13000;
  return Call::result(call.injected());
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  const Call call;
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  if (kernel == nullptr) return Call::result(cudaErrorInvalidDeviceFunction);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || static_cast<size_t>(value) > llmb::simt::kMaxSharedBytes) return Call::result(cudaErrorInvalidValue);
  device().shared_bytes[kernel] = static_cast<size_t>(value);
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* num_blocks, const void* kernel, int block_size,
                                                          size_t dynamic_shared_bytes) {
  const Call call;
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  if (block_size <= 0 || block_size > 1024) return Call::result(cudaErrorInvalidValue);
  *num_blocks = 0;
  if (dynamic_shared_bytes > llmb::simt::allowed_shared_bytes(kernel)) return cudaSuccess;
  const size_t block_shared = dynamic_shared_bytes + llmb::simt::kReservedSharedBytes;
  const int by_shared = static_cast<int>(llmb::simt::kMultiprocessorSharedBytes / block_shared);
  *num_blocks =
      std::min({llmb::simt::kMultiprocessorThreads / block_size, by_shared, llmb::simt::kMultiprocessorBlocks});
  return cudaSuccess;
}
