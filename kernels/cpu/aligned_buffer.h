// Bytes aligned for SIMD and, where large or many, in huge pages: weights are read front to back once a step, and small
// pages would cost as much as the reading.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "core/types.h"

namespace llmb::cpu {

// Move-only. Contents are uninitialised. Throws std::bad_alloc. Buffers may be made and freed on any thread.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(int64_t size_bytes);
  // Bytes that `owner` keeps, such as a mapped file: aligned by the caller, only read. Null data: empty.
  AlignedBuffer(std::shared_ptr<const void> owner, const uint8_t* data, int64_t size_bytes)
      : data_(std::const_pointer_cast<void>(std::move(owner)), const_cast<uint8_t*>(data)),
        size_bytes_(data == nullptr ? 0 : size_bytes) {}
  AlignedBuffer(AlignedBuffer&& other) noexcept { swap(other); }
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    swap(other);
    return *this;
  }

  uint8_t* data() { return data_.get(); }
  const uint8_t* data() const { return data_.get(); }
  int64_t size_bytes() const { return size_bytes_; }
  bool empty() const { return size_bytes_ == 0; }

 private:
  void swap(AlignedBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
  }
  std::shared_ptr<uint8_t> data_;  // may share its allocation with other buffers
  int64_t size_bytes_ = 0;
};

}  // namespace llmb::cpu
