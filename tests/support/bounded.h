// Runs a function in a child process with a limit on its time and a look at its memory, so that a file or a line that
// makes a parser run wild fails a test instead of the machine.
#pragma once

#include <functional>

namespace llmb::test {

struct BoundedRun {
  int exit_code = -1;         // what the function returned; 128 + signal where it was ended by one
  double peak_mebibytes = 0;  // resident memory beyond what there was at the start
};

// The child gets max_cpu_seconds of processor time, ten times as much under a sanitizer. The function's result is 0 to
// 127, what it throws is 1.
BoundedRun run_bounded(const std::function<int()>& function, int max_cpu_seconds = 2);

// False under a sanitizer, whose own memory is in the figures.
bool memory_figures_count();

}  // namespace llmb::test
