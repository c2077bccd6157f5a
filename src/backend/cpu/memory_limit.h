// How much memory this process can still get.
#pragma once

#include <cstdint>

namespace llmb {

// Bytes: the kernel's estimate (MemAvailable), or less where a cgroup limits the process. 0 when it cannot be told.
int64_t available_memory_bytes();

}  // namespace llmb
