#include "tests/e2e/started_run.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <filesystem>
#include <utility>

#include "tests/e2e/run.h"

namespace llmb::test {

namespace {

constexpr int kTickUs = 2000;

// A child that is not the program yet is left alone: until then its parent waits for it.
std::vector<pid_t> children_with(pid_t parent, const std::string& argument) {
  std::vector<pid_t> children;
  for (const pid_t child : children_of(parent))
    if (read_file("/proc/" + std::to_string(child) + "/cmdline").find(argument) != std::string::npos)
      children.push_back(child);
  return children;
}

}  // namespace

std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (!std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isdigit(c); })) continue;
    const std::string stat = read_file(entry.path().string() + "/stat");
    const size_t end = stat.rfind(')');
    if (end == std::string::npos) continue;
    char state = 0;
    int of = 0;
    if (std::sscanf(stat.c_str() + end + 1, " %c %d", &state, &of) == 2 && of == parent && state != 'Z')
      children.push_back(std::stoi(name));
  }
  return children;
}

StartedRun::StartedRun(const std::vector<std::string>& arguments, const std::string& device) {
  start(with({kProgram, "-m", kModel, "--progress", "none", "--device", device}, arguments));
}

std::unique_ptr<StartedRun> StartedRun::of(std::vector<std::string> command) {
  std::unique_ptr<StartedRun> run(new StartedRun());
  run->start(std::move(command));
  return run;
}

void StartedRun::start(std::vector<std::string> command) {
  std::vector<char*> pointers;
  for (std::string& text : command) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  const std::string out = dir_.file("out"), err = dir_.file("err");
  pid_ = ::fork();
  REQUIRE(pid_ >= 0);
  if (pid_ > 0) return;
  ::dup2(::open("/dev/null", O_RDONLY), 0);
  ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT, 0666), 1);
  ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666), 2);
  ::execvp(pointers[0], pointers.data());
  ::_exit(127);
}

StartedRun::~StartedRun() {
  if (has_ended()) return;
  ::kill(pid_, SIGKILL);
  wait();
}

bool StartedRun::has_ended() {
  if (status_ >= 0) return true;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return false;
  status_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return true;
}

std::vector<pid_t> StartedRun::workers() const { return children_with(pid_, "--worker-process"); }

std::vector<pid_t> StartedRun::ranks() const {
  std::vector<pid_t> parents = workers(), ranks;
  parents.push_back(pid_);
  for (const pid_t parent : parents)
    for (const pid_t rank : children_with(parent, "--rank-process")) ranks.push_back(rank);
  return ranks;
}

bool StartedRun::wait_for_workers(size_t count) {
  while (!has_ended()) {
    if (workers().size() >= count) return true;
    ::usleep(kTickUs);
  }
  return false;
}

ProcessResult StartedRun::wait() {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(kProcessTimeoutSeconds);
  while (!has_ended()) {
    REQUIRE(std::chrono::steady_clock::now() < until);
    ::usleep(kTickUs);
  }
  return {status_, read_file(dir_.file("out")), read_file(dir_.file("err"))};
}

}  // namespace llmb::test
