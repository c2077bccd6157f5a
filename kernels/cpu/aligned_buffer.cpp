#include "kernels/cpu/aligned_buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>

#include "base/check.h"

namespace llmb::cpu {

namespace {
constexpr int64_t kCacheLineBytes = 64;
constexpr int64_t kHugePageBytes = int64_t{2} << 20;
}  // namespace

AlignedBuffer::AlignedBuffer(int64_t size_bytes) : size_bytes_(size_bytes) {
  LLMB_CHECK(size_bytes >= 0);
  if (size_bytes == 0) return;
  const bool huge = size_bytes >= 2 * kHugePageBytes;
  const int64_t alignment = huge ? kHugePageBytes : kCacheLineBytes;
  void* p = nullptr;
  if (posix_memalign(&p, static_cast<size_t>(alignment), static_cast<size_t>(size_bytes)) != 0) throw std::bad_alloc();
  if (huge) madvise(p, static_cast<size_t>(size_bytes), MADV_HUGEPAGE);  // a hint: without it only slower
  data_ = static_cast<uint8_t*>(p);
}

AlignedBuffer::~AlignedBuffer() { std::free(data_); }

}  // namespace llmb::cpu
