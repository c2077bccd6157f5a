#include "backend/cpu/memory_limit.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

namespace llmb {

namespace {

std::optional<int64_t> read_number(const char* path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (file >> value && value >= 0) return value;
  return std::nullopt;  // absent, or "max"
}

int64_t mem_available() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  while (file >> key >> kib) {
    if (key == "MemAvailable:") return kib * 1024;
    file.ignore(64, '\n');
  }
  return 0;
}

}  // namespace

int64_t available_memory_bytes() {
  int64_t available = mem_available();
  static constexpr const char* kLimitAndUsage[][2] = {
      {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},                                   // v2
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"}};  // v1
  for (const auto& [limit_path, usage_path] : kLimitAndUsage) {
    const auto limit = read_number(limit_path), usage = read_number(usage_path);
    if (limit && usage) available = std::min(available, std::max<int64_t>(0, *limit - *usage));
  }
  return available;
}

}  // namespace llmb
