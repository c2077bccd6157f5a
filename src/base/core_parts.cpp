#include "base/core_parts.h"

#include <dirent.h>
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <tuple>

namespace llmb {

namespace {

const std::string kCpus = "/sys/devices/system/cpu/cpu";

// 0 where the system does not tell.
int read_number(const std::string& path) {
  int value = 0;
  if (std::FILE* file = std::fopen(path.c_str(), "re")) {
    if (std::fscanf(file, "%d", &value) != 1) value = 0;
    std::fclose(file);
  }
  return value;
}

// A CPU's folder has an entry "nodeN".
int node_of(int cpu) {
  int node = 0;
  if (DIR* folder = ::opendir((kCpus + std::to_string(cpu)).c_str())) {
    while (const dirent* entry = ::readdir(folder))
      if (std::strncmp(entry->d_name, "node", 4) == 0) node = std::atoi(entry->d_name + 4);
    ::closedir(folder);
  }
  return node;
}

auto place(const LogicalCpu& cpu) { return std::tuple(cpu.package, cpu.node, cpu.core); }

}  // namespace

std::vector<std::vector<int>> divide_cores(std::vector<LogicalCpu> cpus, int count) {
  std::vector<std::vector<int>> parts(static_cast<size_t>(count));
  if (cpus.empty()) return parts;
  std::sort(cpus.begin(), cpus.end(), [](const LogicalCpu& a, const LogicalCpu& b) {
    return std::tuple_cat(place(a), std::tuple(a.number)) < std::tuple_cat(place(b), std::tuple(b.number));
  });
  // Whole cores, or single processors where there are too few of these.
  std::vector<std::vector<int>> units;
  for (size_t i = 0; i < cpus.size(); ++i) {
    if (i == 0 || place(cpus[i]) != place(cpus[i - 1])) units.emplace_back();
    units.back().push_back(cpus[i].number);
  }
  if (units.size() < parts.size()) {
    units.clear();
    for (const LogicalCpu& cpu : cpus) units.push_back({cpu.number});
  }
  for (size_t part = 0; part < parts.size(); ++part) {
    const size_t begin = part * units.size() / parts.size();
    const size_t end = std::max(begin + 1, (part + 1) * units.size() / parts.size());
    for (size_t unit = begin; unit < end; ++unit)
      parts[part].insert(parts[part].end(), units[unit].begin(), units[unit].end());
  }
  return parts;
}

std::vector<LogicalCpu> usable_cpus() {
  cpu_set_t set;
  std::vector<LogicalCpu> cpus;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &set)) continue;
    const std::string topology = kCpus + std::to_string(cpu) + "/topology/";
    cpus.push_back(
        {cpu, node_of(cpu), read_number(topology + "physical_package_id"), read_number(topology + "core_id")});
  }
  return cpus;
}

bool run_on(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  return !cpus.empty() && ::sched_setaffinity(0, sizeof set, &set) == 0;
}

}  // namespace llmb
