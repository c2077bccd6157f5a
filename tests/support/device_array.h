// Device memory in tests: an array with guard words on both sides. The same on a device and in the host SIMT layer.
// Not thread-safe.
//
// 1. check_guards() is true as long as nothing wrote outside the array.
// 2. A new array holds 0xFF bytes, NaN for every floating-point type.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "kernels/cuda/device.h"
#ifdef LLMB_SIMT
#include "kernels/simt/settings.h"
#endif

namespace llmb::test {

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t size = 0) : size_(size) {
    cuda::check(cudaMalloc(&memory_, bytes() + 2 * kGuardBytes), "cudaMalloc");
    cuda::check(cudaMemset(memory_, 0xFF, bytes() + 2 * kGuardBytes), "cudaMemset");
    const std::vector<uint8_t> guard(kGuardBytes, kGuardByte);
    copy(memory_, guard.data(), kGuardBytes, cudaMemcpyHostToDevice);
    copy(memory_ + kGuardBytes + bytes(), guard.data(), kGuardBytes, cudaMemcpyHostToDevice);
  }
  explicit DeviceArray(std::span<const T> values) : DeviceArray(values.size()) { upload(values); }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(std::span<const T>(values)) {}
  ~DeviceArray() { cudaFree(memory_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() { return reinterpret_cast<T*>(memory_ + kGuardBytes); }
  const T* data() const { return reinterpret_cast<const T*>(memory_ + kGuardBytes); }
  size_t size() const { return size_; }

  // REQUIRES: values.size() <= size().
  void upload(std::span<const T> values) {
    if (!values.empty()) copy(data(), values.data(), values.size_bytes(), cudaMemcpyHostToDevice);
  }
  // Waits for all work of the device first.
  std::vector<T> download() const {
    cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    std::vector<T> values(size_);
    if (size_ > 0) copy(values.data(), data(), bytes(), cudaMemcpyDeviceToHost);
    return values;
  }
  // As floats, whatever T is.
  std::vector<float> download_floats() const {
    std::vector<float> floats;
    floats.reserve(size_);
    for (const T value : download()) floats.push_back(cuda::to_float(value));
    return floats;
  }
  // Whether the array still holds exactly the bytes of `values`.
  bool holds(std::span<const T> values) const {
    const std::vector<T> now = download();
    return now.size() == values.size() && (now.empty() || std::memcmp(now.data(), values.data(), bytes()) == 0);
  }
  bool check_guards() const {
    cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    std::vector<uint8_t> both(2 * kGuardBytes);
    copy(both.data(), memory_, kGuardBytes, cudaMemcpyDeviceToHost);
    copy(both.data() + kGuardBytes, memory_ + kGuardBytes + bytes(), kGuardBytes, cudaMemcpyDeviceToHost);
    return both == std::vector<uint8_t>(2 * kGuardBytes, kGuardByte);
  }

 private:
  static constexpr size_t kGuardBytes = 256;
  static constexpr uint8_t kGuardByte = 0xFD;  // also a NaN, of another pattern

  size_t bytes() const { return size_ * sizeof(T); }
  static void copy(void* to, const void* from, size_t num_bytes, cudaMemcpyKind kind) {
    cuda::check(cudaMemcpy(to, from, num_bytes, kind), "cudaMemcpy");
  }

  size_t size_;
  uint8_t* memory_ = nullptr;
};

// `values` in the element type T, rounded to nearest even.
template <class T>
std::vector<T> converted(std::span<const float> values) {
  std::vector<T> result;
  result.reserve(values.size());
  for (const float value : values) result.push_back(cuda::from_float<T>(value));
  return result;
}

// Calls `check(seed)` under `num_orders` orders of threads and blocks in the host SIMT layer; once on a device.
template <class Check>
void for_each_order(uint64_t num_orders, Check&& check) {
#ifdef LLMB_SIMT
  for (uint64_t seed = 0; seed < num_orders; ++seed) {
    simt::set_seed(seed);
    check(seed);
  }
#else
  if (num_orders > 0) check(uint64_t{0});
#endif
}

// Whether tests of kernels can run here: always in the host SIMT layer.
inline bool have_device() {
#ifdef LLMB_SIMT
  return true;
#else
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
#endif
}

}  // namespace llmb::test
