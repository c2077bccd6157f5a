#include "base/reserved_addresses.h"

#include <sys/mman.h>

#include <utility>

namespace llmb {

ReservedAddresses::ReservedAddresses(size_t size) {
  void* const begin = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (begin != MAP_FAILED) begin_ = static_cast<const uint8_t*>(begin), size_ = size;
}

ReservedAddresses::ReservedAddresses(ReservedAddresses&& other) noexcept
    : begin_(std::exchange(other.begin_, nullptr)), size_(std::exchange(other.size_, 0)) {}

ReservedAddresses::~ReservedAddresses() {
  if (begin_ != nullptr) munmap(const_cast<uint8_t*>(begin_), size_);
}

}  // namespace llmb
