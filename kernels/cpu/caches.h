// The caches of this machine, as Linux tells.
#pragma once

#include <cstdint>
#include <string>

namespace llmb::cpu {

struct CacheSizes {
  int64_t first_level;   // bytes, for data, of one core
  int64_t second_level;  // bytes, of one core
};

// A size that is not told, or that no core has, is that of kFittedCaches (tuning.h).
CacheSizes read_cache_sizes(const std::string& directory = "/sys/devices/system/cpu/cpu0/cache");

// As read_cache_sizes() found them before main(). Thread-safe.
CacheSizes cache_sizes();
// For tests. REQUIRES: nothing is being computed.
void set_cache_sizes(const CacheSizes& sizes);

// The sum of all last-level caches; 0: unknown.
int64_t last_level_cache_bytes();

}  // namespace llmb::cpu
