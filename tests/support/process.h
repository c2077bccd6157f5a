// Runs the built program as its user would, and collects what it says.
#pragma once

#include <string>
#include <vector>

namespace llmb::test {

struct ProcessResult {
  int exit_code = -1;  // 128 + signal where a signal ended it
  std::string out, err;
};

// For programs that hang; a whole job may take minutes where a sanitizer slows it down and others use the machine.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kProcessTimeoutSeconds = 1500;
#else
constexpr int kProcessTimeoutSeconds = 300;
#endif

// argv[0] is a path or a name found in PATH. `input` is its stdin. Ends with a failed check after timeout_s seconds.
ProcessResult run_process(const std::vector<std::string>& argv, const std::string& input = "",
                          int timeout_s = kProcessTimeoutSeconds);
// The same through /bin/sh, for pipelines.
ProcessResult run_shell(const std::string& command, int timeout_s = kProcessTimeoutSeconds);

// A fresh directory, removed with everything in it.
class TemporaryDirectory {
 public:
  // in_memory: where there is /dev/shm, for tests that sync thousands of times.
  explicit TemporaryDirectory(bool in_memory = false);
  ~TemporaryDirectory();
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::string read_file(const std::string& path);  // "" where it cannot be read
void write_file(const std::string& path, const std::string& content);

}  // namespace llmb::test
