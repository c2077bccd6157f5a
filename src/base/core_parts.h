// Divides the cores of a machine among processes, so that each has neighbours: one socket, one NUMA node, whole cores.
#pragma once

#include <vector>

namespace llmb {

// A logical processor and where it is.
struct LogicalCpu {
  int number = 0;
  int node = 0, package = 0, core = 0;  // NUMA node, socket, core in the socket; those with equal ones share a core
};

// The numbers of each part's processors: `count` parts of about as many cores. Processors of one core stay together
// where there are as many cores as parts; where there are fewer processors than parts, several parts have the same one.
// REQUIRES: count >= 1
std::vector<std::vector<int>> divide_cores(std::vector<LogicalCpu> cpus, int count);

// Those that this process may run on.
std::vector<LogicalCpu> usable_cpus();

// The calling thread, and those that it starts from now on, run on these only. False: the system says no.
bool run_on(const std::vector<int>& cpus);

}  // namespace llmb
