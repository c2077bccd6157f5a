#include "kernels/cpu/aligned_buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <mutex>
#include <new>

#include "base/check.h"

namespace llmb::cpu {

namespace {

constexpr int64_t kCacheLineBytes = 64;
constexpr int64_t kHugePageBytes = int64_t{2} << 20;
#if defined(__SANITIZE_ADDRESS__)
constexpr int64_t kSlabBytes = 0;  // every buffer has an allocation of its own, whose ends are watched
#else
constexpr int64_t kSlabBytes = 16 * kHugePageBytes;
#endif
constexpr int64_t kMinSlabPart = int64_t{32} << 10;  // smaller ones are not read front to back often enough to matter

int64_t round_up(int64_t size, int64_t unit) { return ceil_div(size, unit) * unit; }

std::shared_ptr<uint8_t> allocate(int64_t size, int64_t alignment) {
  void* p = std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(round_up(size, alignment)));
  if (p == nullptr) throw std::bad_alloc();
  if (alignment == kHugePageBytes)
    madvise(p, static_cast<size_t>(size), MADV_HUGEPAGE);  // a hint: without it only slower
  return {static_cast<uint8_t*>(p), [](uint8_t* data) { std::free(data); }};
}

// A part of a slab that several buffers share; the slab is freed with the last of them. Weights are made once and stay,
// so parts are handed out one after the other and never reused.
std::shared_ptr<uint8_t> slab_part(int64_t size) {
  static std::mutex mutex;
  static std::shared_ptr<uint8_t> slab;
  static int64_t used = 0;
  std::lock_guard lock(mutex);
  if (!slab || used + size > kSlabBytes) {
    slab.reset();
    slab = allocate(kSlabBytes, kHugePageBytes);
    used = 0;
  }
  uint8_t* at = slab.get() + used;
  used += round_up(size, kCacheLineBytes);
  return {slab, at};
}

}  // namespace

AlignedBuffer::AlignedBuffer(int64_t size_bytes) : size_bytes_(size_bytes) {
  LLMB_CHECK(size_bytes >= 0);
  if (size_bytes == 0) return;
  if (size_bytes >= kMinSlabPart && size_bytes <= kSlabBytes / 4) data_ = slab_part(size_bytes);
  else data_ = allocate(size_bytes, size_bytes >= 2 * kHugePageBytes ? kHugePageBytes : kCacheLineBytes);
}

}  // namespace llmb::cpu
