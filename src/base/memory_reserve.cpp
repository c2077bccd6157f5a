#include "base/memory_reserve.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace llmb {

namespace {

constexpr size_t kPartBytes = 32 << 10;
std::array<std::atomic<void*>, 32> g_parts{};
std::atomic<bool> g_is_short{false};

void use_reserve() {
  g_is_short.store(true, std::memory_order_relaxed);
  for (std::atomic<void*>& part : g_parts)
    if (void* const memory = part.exchange(nullptr)) return std::free(memory);
  throw std::bad_alloc();
}

}  // namespace

void hold_memory_reserve() {
  for (std::atomic<void*>& part : g_parts) part.store(std::malloc(kPartBytes));
  std::set_new_handler(use_reserve);
}

bool is_memory_short() { return g_is_short.load(std::memory_order_relaxed); }

}  // namespace llmb
