// Owned memory of the device and pinned memory of the host, owned streams and events.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

#include "kernels/cuda/error.h"

namespace llmb::cuda {

// Device memory of the current device. Move-only. Throws CudaError.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(int64_t bytes) : bytes_(bytes) {
    if (bytes > 0) check(cudaMalloc(&data_, static_cast<size_t>(bytes)), "cudaMalloc");
  }
  DeviceMemory(DeviceMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  // An error here can only repeat what an earlier call has reported.
  ~DeviceMemory() { cudaFree(data_); }

  template <typename T = void>
  T* data() const {
    return static_cast<T*>(data_);
  }
  int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Page-locked host memory: copies to and from it are asynchronous. Move-only. Throws CudaError.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  explicit PinnedMemory(int64_t bytes) : bytes_(bytes) {
    if (bytes > 0) check(cudaMallocHost(&data_, static_cast<size_t>(bytes)), "cudaMallocHost");
  }
  PinnedMemory(PinnedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~PinnedMemory() { cudaFreeHost(data_); }

  template <typename T = void>
  T* data() const {
    return static_cast<T*>(data_);
  }
  int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

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
