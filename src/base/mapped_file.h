// A file mapped read-only into memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace llmb {

// Move-only; unmapped on destruction. An empty file has data() == nullptr and size() == 0.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  bool contains(const uint8_t* at) const { return at >= data_ && at < data_ + size_; }

  // Whole pages of these bytes no longer count as this process's memory; they may be read again.
  void release_pages(const uint8_t* begin, size_t size) const;

 private:
  MappedFile(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace llmb
