// An open file, closed with this.
#pragma once

#include <utility>

#include "base/file_ops.h"

namespace llmb {

// Move-only. -1: none.
class Descriptor {
 public:
  Descriptor() = default;
  Descriptor(FileOps& ops, int fd) : ops_(&ops), fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept { swap(other); }
  Descriptor& operator=(Descriptor&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) ops_->close(fd_);
  }
  int get() const { return fd_; }

 private:
  void swap(Descriptor& other) noexcept {
    std::swap(ops_, other.ops_);
    std::swap(fd_, other.fd_);
  }
  FileOps* ops_ = nullptr;
  int fd_ = -1;
};

}  // namespace llmb
