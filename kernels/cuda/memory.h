// Owned memory of the device and pinned memory of the host, owned streams and events.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

#include "kernels/cuda/error.h"

namespace llmb::cuda {

namespace detail {

struct OnDevice {
  static constexpr const char* kCall = "cudaMalloc";
  static cudaError_t allocate(void** data, size_t bytes) { return cudaMalloc(data, bytes); }
  static void release(void* data) { cudaFree(data); }
};
struct PinnedOnHost {
  static constexpr const char* kCall = "cudaMallocHost";
  static cudaError_t allocate(void** data, size_t bytes) { return cudaMallocHost(data, bytes); }
  static void release(void* data) { cudaFreeHost(data); }
};

}  // namespace detail

// Move-only. Throws CudaError.
template <class Where>
class Memory {
 public:
  Memory() = default;
  explicit Memory(int64_t bytes) : bytes_(bytes) {
    if (bytes > 0) check(Where::allocate(&data_, static_cast<size_t>(bytes)), Where::kCall);
  }
  Memory(Memory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  // An error here can only repeat what an earlier call has reported.
  ~Memory() { Where::release(data_); }

  template <typename T = void>
  T* data() const {
    return static_cast<T*>(data_);
  }
  int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

using DeviceMemory = Memory<detail::OnDevice>;      // of the current device
using PinnedMemory = Memory<detail::PinnedOnHost>;  // page-locked: copies to and from it are asynchronous

class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate"); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(stream_); }
  cudaStream_t get() const { return stream_; }
  void synchronize() const { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

// A thread that waits for it sleeps.
class Event {
 public:
  explicit Event(unsigned flags = cudaEventBlockingSync | cudaEventDisableTiming) {
    check(cudaEventCreateWithFlags(&event_, flags), "cudaEventCreate");
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }
  cudaEvent_t get() const { return event_; }
  void record(cudaStream_t stream) const { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  void synchronize() const { check(cudaEventSynchronize(event_), "cudaEventSynchronize"); }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace llmb::cuda
