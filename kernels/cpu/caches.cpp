#include "kernels/cpu/caches.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "core/types.h"
#include "kernels/cpu/tuning.h"

namespace llmb::cpu {

namespace {

// As 48K or 2M; 0: unknown.
int64_t read_size(const std::string& cache) {
  int64_t size = 0;
  char unit = 0;
  std::ifstream(cache + "/size") >> size >> unit;
  if (size <= 0 || size > INT32_MAX) return 0;
  return unit == 'K' ? size << 10 : unit == 'M' ? size << 20 : 0;
}

}  // namespace

CacheSizes read_cache_sizes(const std::string& directory) {
  CacheSizes found = kFittedCaches;
  for (int index = 0; index < 8; ++index) {
    const std::string cache = directory + "/index" + std::to_string(index);
    int level = 0;
    std::string type;
    std::ifstream(cache + "/level") >> level;
    std::ifstream(cache + "/type") >> type;
    const int64_t size = read_size(cache);
    if (type == "Instruction") continue;
    if (level == 1 && size >= int64_t{8} << 10 && size <= int64_t{1} << 20) found.first_level = size;
    if (level == 2 && size >= int64_t{64} << 10 && size <= int64_t{256} << 20) found.second_level = size;
  }
  return found;
}

namespace {

CacheSizes g_sizes = read_cache_sizes();  // before main(), as no step allocates

}  // namespace

CacheSizes cache_sizes() { return g_sizes; }
void set_cache_sizes(const CacheSizes& sizes) { g_sizes = sizes; }

int64_t last_level_cache_bytes() {
  const std::string cache = "/sys/devices/system/cpu/cpu0/cache/index3";
  int64_t num_sharing = 0;
  std::ifstream list(cache + "/shared_cpu_list");  // as 0-7,64-71
  for (int64_t first = 0; list >> first; list.ignore(1, ',')) {
    int64_t last = first;
    if (list.peek() == '-') list.ignore(1), list >> last;
    num_sharing += last - first + 1;
  }
  if (num_sharing <= 0) return 0;
  return read_size(cache) * ceil_div(std::max<int64_t>(sysconf(_SC_NPROCESSORS_ONLN), 1), num_sharing);
}

}  // namespace llmb::cpu
