#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>

#include "kernels/simt/device_state.h"
#include "kernels/simt/settings.h"
#include "kernels/simt/stream.h"

namespace llmb::simt {

namespace {

struct Memory {
  std::map<uintptr_t, size_t> device;
  std::map<uintptr_t, size_t> pinned;
  size_t device_bytes = 0;
  uint64_t num_allocations = 0;
};

Memory& memory() {
  static Memory instance;
  return instance;
}

uintptr_t number(const void* address) { return reinterpret_cast<uintptr_t>(address); }

bool contains(const std::map<uintptr_t, size_t>& pieces, const void* address, size_t num_bytes) {
  const auto above = pieces.upper_bound(number(address));
  if (above == pieces.begin()) return false;
  const auto [begin, size] = *std::prev(above);
  const size_t offset = number(address) - begin;
  return offset <= size && num_bytes <= size - offset;
}

// Exactly `num_bytes`, so that AddressSanitizer sees the first byte too many.
void* allocate(size_t num_bytes) {
  void* result = nullptr;
  if (posix_memalign(&result, 256, std::max<size_t>(num_bytes, 1)) != 0) return nullptr;
  std::memset(result, 0xFF, num_bytes);
  return result;
}

struct Copy {
  void* to;
  const void* from;
  size_t width;
  size_t height = 1;
  size_t to_pitch = 0;
  size_t from_pitch = 0;

  size_t to_extent() const { return height == 0 ? 0 : (height - 1) * to_pitch + width; }
  size_t from_extent() const { return height == 0 ? 0 : (height - 1) * from_pitch + width; }
  void run() const {
    for (size_t row = 0; row < height && width > 0; ++row) {
      std::memcpy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
    }
  }
};

bool sides_are_right(const Copy& copy, cudaMemcpyKind kind) {
  const bool to_device = in_device_memory(copy.to, copy.to_extent());
  const bool from_device = in_device_memory(copy.from, copy.from_extent());
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
      return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

// Pageable memory is read before the call returns and written before it returns, as the driver does it.
cudaError_t queue_copy(const Copy& copy, cudaMemcpyKind kind, const std::shared_ptr<Stream>& stream) {
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (copy.width == 0 || copy.height == 0) return cudaSuccess;
  if (!sides_are_right(copy, kind)) return cudaErrorInvalidValue;
  const bool from_pageable =
      !in_device_memory(copy.from, copy.from_extent()) && !in_pinned_memory(copy.from, copy.from_extent());
  const bool to_pageable = !in_device_memory(copy.to, copy.to_extent()) && !in_pinned_memory(copy.to, copy.to_extent());
  if ((from_pageable || to_pageable) && spoils_capture(*stream)) return cudaErrorStreamCaptureUnsupported;
  if (from_pageable) {
    const char* begin = static_cast<const char*>(copy.from);
    auto staged = std::make_shared<std::vector<char>>(begin, begin + copy.from_extent());
    enqueue(stream, [copy, staged] {
      Copy from_stage = copy;
      from_stage.from = staged->data();
      from_stage.run();
    });
  } else {
    enqueue(stream, [copy] { copy.run(); });
  }
  if (to_pageable) run_until({stream, stream->num_queued});
  return cudaSuccess;
}

}  // namespace

bool in_device_memory(const void* address, size_t num_bytes) { return contains(memory().device, address, num_bytes); }
bool in_pinned_memory(const void* address, size_t num_bytes) { return contains(memory().pinned, address, num_bytes); }

size_t device_bytes_in_use() {
  const auto lock = lock_state();
  return memory().device_bytes;
}

uint64_t num_allocations() {
  const auto lock = lock_state();
  return memory().num_allocations;
}

}  // namespace llmb::simt

using llmb::simt::Call;

cudaError_t cudaMalloc(void** address, size_t num_bytes) {
  const Call call;
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  if (llmb::simt::capture_forbids_call()) return Call::result(cudaErrorStreamCaptureUnsupported);
  *address = nullptr;
  if (num_bytes == 0) return cudaSuccess;
  llmb::simt::Memory& memory = llmb::simt::memory();
  if (num_bytes > llmb::simt::device_bytes() - std::min(memory.device_bytes, llmb::simt::device_bytes())) {
    return Call::result(cudaErrorMemoryAllocation);
  }
  *address = llmb::simt::allocate(num_bytes);
  if (*address == nullptr) return Call::result(cudaErrorMemoryAllocation);
  memory.device[llmb::simt::number(*address)] = num_bytes;
  memory.device_bytes += num_bytes;
  ++memory.num_allocations;
  return cudaSuccess;
}

// Waits for all work, as the real one does.
cudaError_t cudaFree(void* address) {
  const Call call;
  if (address == nullptr) return Call::result(call.injected());
  if (llmb::simt::capture_forbids_call()) return Call::result(cudaErrorStreamCaptureUnsupported);
  llmb::simt::Memory& memory = llmb::simt::memory();
  const auto found = memory.device.find(llmb::simt::number(address));
  if (found == memory.device.end()) return Call::result(cudaErrorInvalidValue);
  llmb::simt::run_everything();
  memory.device_bytes -= found->second;
  memory.device.erase(found);
  std::free(address);
  return Call::result(call.injected());
}

cudaError_t cudaHostAlloc(void** address, size_t num_bytes, unsigned) {
  const Call call;
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  if (llmb::simt::capture_forbids_call()) return Call::result(cudaErrorStreamCaptureUnsupported);
  *address = nullptr;
  if (num_bytes == 0) return cudaSuccess;
  *address = llmb::simt::allocate(num_bytes);
  if (*address == nullptr) return Call::result(cudaErrorMemoryAllocation);
  llmb::simt::memory().pinned[llmb::simt::number(*address)] = num_bytes;
  ++llmb::simt::memory().num_allocations;
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** address, size_t num_bytes, unsigned flags) {
  return cudaHostAlloc(address, num_bytes, flags);
}

cudaError_t cudaFreeHost(void* address) {
  const Call call;
  if (address == nullptr) return Call::result(call.injected());
  if (llmb::simt::capture_forbids_call()) return Call::result(cudaErrorStreamCaptureUnsupported);
  llmb::simt::Memory& memory = llmb::simt::memory();
  if (memory.pinned.erase(llmb::simt::number(address)) == 0) return Call::result(cudaErrorInvalidValue);
  llmb::simt::run_everything();
  std::free(address);
  return Call::result(call.injected());
}

cudaError_t cudaHostRegister(void* address, size_t num_bytes, unsigned) {
  const Call call;
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  llmb::simt::memory().pinned[llmb::simt::number(address)] = num_bytes;
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* address) {
  const Call call;
  if (llmb::simt::memory().pinned.erase(llmb::simt::number(address)) == 0) return Call::result(cudaErrorInvalidValue);
  return Call::result(call.injected());
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  const Call call;
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  *total_bytes = llmb::simt::device_bytes();
  *free_bytes = *total_bytes - std::min(*total_bytes, llmb::simt::memory().device_bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t num_bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  const Call call;
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  return Call::result(llmb::simt::queue_copy({to, from, num_bytes}, kind, llmb::simt::stream_state(stream)));
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t num_bytes, cudaMemcpyKind kind) {
  const Call call;
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  if (llmb::simt::capture_forbids_call()) return Call::result(cudaErrorStreamCaptureUnsupported);
  const auto stream = llmb::simt::stream_state(nullptr);
  const cudaError_t error = llmb::simt::queue_copy({to, from, num_bytes}, kind, stream);
  if (error == cudaSuccess) llmb::simt::run_until({stream, stream->num_queued});
  return Call::result(error);
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width_bytes,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  const Call call;
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  if (to_pitch < width_bytes || from_pitch < width_bytes) return Call::result(cudaErrorInvalidValue);
  return Call::result(llmb::simt::queue_copy({to, from, width_bytes, height, to_pitch, from_pitch}, kind,
                                             llmb::simt::stream_state(stream)));
}

cudaError_t cudaMemsetAsync(void* address, int value, size_t num_bytes, cudaStream_t stream) {
  const Call call;
  if (call.injected() != cudaSuccess) return Call::result(call.injected());
  const auto state = llmb::simt::stream_state(stream);
  if (state == nullptr) return Call::result(cudaErrorInvalidResourceHandle);
  if (num_bytes == 0) return cudaSuccess;
  if (!llmb::simt::in_device_memory(address, num_bytes)) return Call::result(cudaErrorInvalidValue);
  llmb::simt::enqueue(state, [address, value, num_bytes] { std::memset(address, value, num_bytes); });
  return cudaSuccess;
}

cudaError_t cudaMemset(void* address, int value, size_t num_bytes) {
  if (const auto lock = llmb::simt::lock_state(); llmb::simt::capture_forbids_call()) {
    return Call::result(cudaErrorStreamCaptureUnsupported);
  }
  return cudaMemsetAsync(address, value, num_bytes, nullptr);
}
