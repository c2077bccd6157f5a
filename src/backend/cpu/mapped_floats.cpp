#include "backend/cpu/mapped_floats.h"

#include <sys/mman.h>

#include <new>

namespace llmb {

MappedFloats::MappedFloats(int64_t size) : size_(size) {
  int64_t bytes = 0;
  if (size == 0) return;
  if (size < 0 || __builtin_mul_overflow(size, int64_t{sizeof(float)}, &bytes)) throw std::bad_alloc();
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<float*>(data);
}

MappedFloats::~MappedFloats() {
  if (data_ != nullptr) munmap(data_, size_ * sizeof(float));
}

}  // namespace llmb
