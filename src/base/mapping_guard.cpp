#include "base/mapping_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

namespace llmb {

namespace {

// Read by the signal's handler at any moment. `begin` is written last, and is 0 in a free slot.
struct Slot {
  std::atomic<uintptr_t> begin{0};
  std::atomic<size_t> size{0};
  std::atomic<bool> is_taken{false}, is_lost{false};
};
static_assert(std::atomic<uintptr_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

Slot g_slots[MappingGuard::kMaxGuards];
struct sigaction g_previous;

// Only calls that may be made in a handler. The instruction that failed runs again when this returns.
bool put_zeros_at(uintptr_t address) {
  for (Slot& slot : g_slots) {
    const uintptr_t begin = slot.begin.load(std::memory_order_acquire);
    const size_t size = slot.size.load(std::memory_order_relaxed);
    if (begin == 0 || address < begin || address - begin >= size) continue;
    slot.is_lost.store(true, std::memory_order_seq_cst);  // before anybody can read a zero
    constexpr long kZeros = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
    // The call itself: libc's function is not promised to handlers, and ThreadSanitizer takes it for a write of pages that
    // other threads are reading.
    return syscall(SYS_mmap, begin, size, long{PROT_READ}, kZeros, -1L, 0L) != -1;
  }
  return false;
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  const bool is_ours = info->si_code > 0 && put_zeros_at(reinterpret_cast<uintptr_t>(info->si_addr));
  errno = error;
  if (is_ours) return;
  if ((g_previous.sa_flags & SA_SIGINFO) != 0) return g_previous.sa_sigaction(signal, info, context);
  if (g_previous.sa_handler != SIG_DFL && g_previous.sa_handler != SIG_IGN) return g_previous.sa_handler(signal);
  ::signal(signal, SIG_DFL);
  if (info->si_code <= 0) raise(signal);  // sent by a process: no instruction would fail again
}

bool install() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, nullptr, &g_previous);  // first: the handler may run at once
  return sigaction(SIGBUS, &action, nullptr) == 0;
}

}  // namespace

MappingGuard::MappingGuard(const void* at, size_t size) {
  [[maybe_unused]] static const bool is_installed = install();
  for (int i = 0; i < kMaxGuards; ++i) {
    Slot& slot = g_slots[i];
    if (slot.is_taken.exchange(true, std::memory_order_acquire)) continue;
    slot.is_lost.store(false, std::memory_order_relaxed);
    slot.size.store(size, std::memory_order_relaxed);
    slot.begin.store(reinterpret_cast<uintptr_t>(at), std::memory_order_release);
    slot_ = i;
    return;
  }
}

MappingGuard::~MappingGuard() {
  if (slot_ < 0) return;
  g_slots[slot_].begin.store(0, std::memory_order_relaxed);
  g_slots[slot_].is_taken.store(false, std::memory_order_release);
}

bool MappingGuard::is_lost() const { return slot_ >= 0 && g_slots[slot_].is_lost.load(std::memory_order_seq_cst); }

}  // namespace llmb
