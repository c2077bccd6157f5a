// Zeroed fp32 memory straight from the kernel: pages cost nothing until they are touched. Huge pages where it is large.
#pragma once

#include <cstdint>
#include <utility>

namespace llmb {

// Move-only. Throws std::bad_alloc.
class MappedFloats {
 public:
  MappedFloats() = default;
  explicit MappedFloats(int64_t size);
  MappedFloats(MappedFloats&& other) noexcept { swap(other); }
  MappedFloats& operator=(MappedFloats&& other) noexcept {
    swap(other);
    return *this;
  }
  ~MappedFloats();

  float* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  void swap(MappedFloats& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(mapping_, other.mapping_);
    std::swap(mapping_bytes_, other.mapping_bytes_);
  }
  float* data_ = nullptr;
  int64_t size_ = 0;
  void* mapping_ = nullptr;
  int64_t mapping_bytes_ = 0;
};

}  // namespace llmb
