// A file mapped read-only into memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/file_identity.h"
#include "base/mapping_guard.h"
#include "base/status.h"

namespace llmb {

// Move-only; unmapped on destruction. An empty file has data() == nullptr and size() == 0.
//
// Others may write to the file, and then the bytes change; they may cut it short, and then all of them become zeros.
// Bytes that were read count only if still_readable() says so afterwards, and, where the bytes may have changed, while
// somebody makes sure that the file has the identity that it was opened with. Memory is safe in any case, as long as
// sizes that are read are checked by whoever uses them.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);
  // Maps an open file; `path` is for messages.
  static Result<MappedFile> map(int fd, const struct stat& st, const std::string& path);
  MappedFile(MappedFile&& other) noexcept { swap(other); }
  MappedFile& operator=(MappedFile&& other) noexcept {
    swap(other);
    return *this;
  }
  ~MappedFile();

  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  const FileIdentity& identity() const { return identity_; }  // when it was opened
  ChangeTimes change_times() const { return change_times_; }
  bool contains(const uint8_t* at) const { return at >= data_ && at < data_ + size_; }

  // kDataLoss: a page could not be read; zeros were read in its stead, and perhaps elsewhere.
  Status still_readable() const;

  // All of it, front to back and again and again: asks for huge pages, which file systems give where they can.
  void will_read_all() const;

  // Whole pages of these bytes no longer count as this process's memory; they may be read again.
  void release_pages(const uint8_t* begin, size_t size) const;

 private:
  MappedFile() = default;
  void swap(MappedFile& other) noexcept;
  std::string path_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  FileIdentity identity_;
  ChangeTimes change_times_ = ChangeTimes::kUnknown;
  MappingGuard guard_;
};

}  // namespace llmb
