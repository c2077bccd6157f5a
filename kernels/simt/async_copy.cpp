#include <cstring>
#include <string>

#include "kernels/simt/ptx.h"

namespace llmb::cuda::ptx {

namespace {

void check_aligned(const void* address, uint32_t bytes, const char* what) {
  if (reinterpret_cast<uintptr_t>(address) % bytes != 0) {
    ::llmb::simt::fault("cp_async" + std::to_string(bytes) + ": " + what + " is not aligned to " +
                        std::to_string(bytes) + " bytes");
  }
}

}  // namespace

void detail::cp_async(void* to_shared, const void* from_global, uint32_t bytes, bool valid) {
  check_aligned(to_shared, bytes, "the destination");
  check_aligned(from_global, bytes, "the source");
  std::memset(to_shared, 0xFF, bytes);
  ::llmb::simt::g_thread->copies.push_back({to_shared, from_global, bytes, !valid});
}

void cp_async16(void* to_shared, const void* from_global, bool valid) {
  detail::cp_async(to_shared, from_global, 16, valid);
}

void cp_async_commit() {
  ::llmb::simt::Thread& thread = *::llmb::simt::g_thread;
  thread.group_ends.push_back(static_cast<uint32_t>(thread.copies.size()));
}

void detail::cp_async_wait(uint32_t num_pending) {
  ::llmb::simt::Thread& thread = *::llmb::simt::g_thread;
  if (thread.group_ends.size() <= num_pending) return;
  const size_t num_groups = thread.group_ends.size() - num_pending;
  const uint32_t end = thread.group_ends[num_groups - 1];
  for (uint32_t i = 0; i < end; ++i) ::llmb::simt::land(thread.copies[i]);
  thread.copies.erase(thread.copies.begin(), thread.copies.begin() + end);
  thread.group_ends.erase(thread.group_ends.begin(), thread.group_ends.begin() + static_cast<long>(num_groups));
  for (uint32_t& group_end : thread.group_ends) group_end -= end;
}

}  // namespace llmb::cuda::ptx
