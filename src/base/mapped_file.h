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
  int64_t mtime_ns() const { return mtime_ns_; }  // when it was opened
  uint64_t inode() const { return inode_; }
  bool contains(const uint8_t* at) const { return at >= data_ && at < data_ + size_; }

  // All of it, front to back and again and again: asks for huge pages, which file systems give where they can.
  void will_read_all() const;

  // Whole pages of these bytes no longer count as this process's memory; they may be read again.
  void release_pages(const uint8_t* begin, size_t size) const;

 private:
  MappedFile() = default;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  int64_t mtime_ns_ = 0;
  uint64_t inode_ = 0;
};

}  // namespace llmb
