#include "tests/support/bounded.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <string>

#include "base/check.h"

namespace llmb::test {

namespace {

double status_mebibytes(const char* field) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(field)) return std::strtod(line.c_str() + std::strlen(field), nullptr) / 1024;
  return 0;
}

[[noreturn]] void run_child(const std::function<int()>& function, int max_cpu_seconds, int report_fd) {
  const rlim_t seconds = static_cast<rlim_t>(max_cpu_seconds) * (memory_figures_count() ? 1 : 10);
  const rlimit limit = {seconds, seconds + 1};
  setrlimit(RLIMIT_CPU, &limit);
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts anew
  const double before = status_mebibytes("VmRSS:");
  int exit_code = 1;
  try {
    exit_code = function();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "thrown: %s\n", e.what());
  }
  const double peak = status_mebibytes("VmHWM:") - before;
  if (write(report_fd, &peak, sizeof(peak)) != sizeof(peak)) _exit(1);
  _exit(exit_code);
}

}  // namespace

bool memory_figures_count() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return false;
#else
  return true;
#endif
}

BoundedRun run_bounded(const std::function<int()>& function, int max_cpu_seconds) {
  int ends[2];
  LLMB_CHECK(pipe(ends) == 0);
  const pid_t pid = fork();
  LLMB_CHECK(pid >= 0);
  if (pid == 0) run_child(function, max_cpu_seconds, ends[1]);
  close(ends[1]);
  BoundedRun run;
  if (read(ends[0], &run.peak_mebibytes, sizeof(run.peak_mebibytes)) != sizeof(run.peak_mebibytes))
    run.peak_mebibytes = 0;
  close(ends[0]);
  int status = 0;
  LLMB_CHECK(waitpid(pid, &status, 0) == pid);
  run.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return run;
}

}  // namespace llmb::test
