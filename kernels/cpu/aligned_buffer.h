// Bytes aligned for SIMD and, where large, for huge pages: weights are read front to back once a step.
#pragma once

#include <cstdint>
#include <utility>

namespace llmb::cpu {

// Move-only. Contents are uninitialised. Throws std::bad_alloc.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(int64_t size_bytes);
  AlignedBuffer(AlignedBuffer&& other) noexcept { swap(other); }
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~AlignedBuffer();

  uint8_t* data() { return data_; }
  const uint8_t* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }
  bool empty() const { return size_bytes_ == 0; }

 private:
  void swap(AlignedBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
  }
  uint8_t* data_ = nullptr;
  int64_t size_bytes_ = 0;
};

}  // namespace llmb::cpu
