// A run of the program that a test looks at, and sends signals to, while it goes on.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/process.h"

namespace llmb::test {

class StartedRun {
 public:
  // llm-batch -m data/model --progress none --device DEVICE <arguments>, with nothing on stdin.
  explicit StartedRun(const std::vector<std::string>& arguments, const std::string& device = "ledger");
  // A whole command, likewise.
  static std::unique_ptr<StartedRun> of(std::vector<std::string> command);
  ~StartedRun();
  StartedRun(const StartedRun&) = delete;
  StartedRun& operator=(const StartedRun&) = delete;

  pid_t pid() const { return pid_; }
  bool has_ended();
  // Worker processes that live.
  std::vector<pid_t> workers() const;
  // Ranks in processes of their own that live, the run's and its workers'.
  std::vector<pid_t> ranks() const;
  // Waits until there are so many; false: the run has ended.
  bool wait_for_workers(size_t count);
  ProcessResult wait();

 private:
  StartedRun() = default;
  void start(std::vector<std::string> command);

  TemporaryDirectory dir_;
  pid_t pid_ = -1;
  int status_ = -1;
};

// Children of a process that have not ended, by /proc.
std::vector<pid_t> children_of(pid_t parent);

}  // namespace llmb::test
