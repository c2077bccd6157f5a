// The program in a child process of the test, so that it can be given a backend that no device name stands for.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cli/run.h"
#include "cli/signals.h"
#include "tests/e2e/run.h"

namespace llmb::test {

struct ChildResult {
  ProcessResult process;  // out: where the results go to stdout
  double wall_s = 0;
};

// Runs main() with these arguments after "llm-batch -m data/model --progress none", except that backends come from
// `make`. in_child is called first, in the child; while_running in the parent, with the child's pid.
inline ChildResult run_in_child(
    const std::vector<std::string>& arguments, const BackendFactory& make,
    const std::function<void()>& in_child = [] {}, const std::function<void(pid_t)>& while_running = [](pid_t) {}) {
  const TemporaryDirectory dir;
  const auto start = std::chrono::steady_clock::now();
  std::fflush(nullptr);  // or the child, too, writes what doctest has said so far: ThreadSanitizer flushes in _exit()
  const pid_t child = fork();
  if (child == 0) {
    const auto redirect = [&](const char* name, int fd) {
      dup2(open(dir.file(name).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666), fd);
    };
    redirect("out", STDOUT_FILENO);
    redirect("err", STDERR_FILENO);
    in_child();
    install_signal_handlers();
    std::vector<const char*> argv = {"llm-batch", "-m", kModel.c_str(), "--progress", "none", "--metrics", "none"};
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    _exit(run_command_line(static_cast<int>(argv.size()), argv.data(), make));
  }
  while_running(child);
  int status = 0;
  waitpid(child, &status, 0);
  ChildResult result;
  result.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.process.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.process.out = read_file(dir.file("out"));
  result.process.err = read_file(dir.file("err"));
  return result;
}

}  // namespace llmb::test
