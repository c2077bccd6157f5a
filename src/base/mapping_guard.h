// Survives pages of mapped files that cannot be read, because the file was cut short or its disk fails. Linux
// sends SIGBUS for it. Here zeros take the place of the whole mapping, and it counts as lost: whoever has read of it
// asks is_lost() before it trusts what it has read.
#pragma once

#include <cstddef>

namespace llmb {

// Move-only. While it lives, its memory is guarded. The signal's other causes reach the handler that was there before.
class MappingGuard {
 public:
  MappingGuard() = default;                   // of nothing
  MappingGuard(const void* at, size_t size);  // of a private mapping that is only read
  MappingGuard(MappingGuard&& other) noexcept { swap(other); }
  MappingGuard& operator=(MappingGuard&& other) noexcept {
    swap(other);
    return *this;
  }
  ~MappingGuard();

  bool is_guarding() const { return slot_ >= 0; }  // false: too many mappings are guarded already
  bool is_lost() const;

  static constexpr int kMaxGuards = 8192;

 private:
  void swap(MappingGuard& other) noexcept {
    const int slot = slot_;
    slot_ = other.slot_;
    other.slot_ = slot;
  }
  int slot_ = -1;
};

}  // namespace llmb
