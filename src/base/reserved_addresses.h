// Addresses that nothing lies at.
#pragma once

#include <cstddef>
#include <cstdint>

namespace llmb {

// A range of addresses of the process, whole pages of which nobody can read or write and which take no memory. Empty
// where the system has none to give.
class ReservedAddresses {
 public:
  explicit ReservedAddresses(size_t size);
  ReservedAddresses(ReservedAddresses&& other) noexcept;
  ReservedAddresses& operator=(ReservedAddresses&&) = delete;
  ~ReservedAddresses();

  const uint8_t* begin() const { return begin_; }  // null: empty
  bool contains(const void* address) const {
    const auto at = reinterpret_cast<uintptr_t>(address), first = reinterpret_cast<uintptr_t>(begin_);
    return at >= first && at - first < size_;
  }

 private:
  const uint8_t* begin_ = nullptr;
  size_t size_ = 0;
};

}  // namespace llmb
