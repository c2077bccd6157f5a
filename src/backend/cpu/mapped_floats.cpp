#include "backend/cpu/mapped_floats.h"

#include <sys/mman.h>

#include <new>

namespace llmb {

namespace {
constexpr int64_t kHugePageBytes = int64_t{2} << 20;
}

MappedFloats::MappedFloats(int64_t size) : size_(size) {
  int64_t bytes = 0;
  if (size == 0) return;
  if (size < 0 || __builtin_mul_overflow(size, int64_t{sizeof(float)}, &bytes)) throw std::bad_alloc();
  // Room to begin at a huge page's border.
  const bool huge = bytes >= 2 * kHugePageBytes;
  if (__builtin_add_overflow(bytes, huge ? kHugePageBytes : 0, &mapping_bytes_)) throw std::bad_alloc();
  mapping_ =
      mmap(nullptr, mapping_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED) throw std::bad_alloc();
  auto* data = static_cast<uint8_t*>(mapping_);
  if (huge) {
    data += (kHugePageBytes - reinterpret_cast<uintptr_t>(data) % kHugePageBytes) % kHugePageBytes;
    madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // a hint: without it only slower
  }
  data_ = reinterpret_cast<float*>(data);
}

MappedFloats::~MappedFloats() {
  if (data_ != nullptr) munmap(mapping_, static_cast<size_t>(mapping_bytes_));
}

}  // namespace llmb
