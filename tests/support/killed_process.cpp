#include "tests/support/killed_process.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "tests/support/process.h"

namespace llmb::test {

namespace {

using WallClock = std::chrono::steady_clock;

double ms_since(WallClock::time_point start) {
  return std::chrono::duration<double, std::milli>(WallClock::now() - start).count();
}

// Reports the file calls to the tracer and allows everything.
std::vector<sock_filter> file_call_filter() {
  const std::vector<unsigned> calls = {__NR_write,     __NR_writev,    __NR_pwrite64,
                                       __NR_fsync,     __NR_fdatasync, __NR_ftruncate,
#ifdef __NR_rename
                                       __NR_rename,    __NR_unlink,
#endif
                                       __NR_renameat2, __NR_unlinkat,  __NR_flock};
  std::vector<sock_filter> filter = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const unsigned call : calls) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1));
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE));
  }
  filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_openat, 0, 3));
  filter.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])));
  filter.push_back(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_CREAT, 0, 1));
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE));
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  return filter;
}

// Between fork and exec: only calls that are safe there.
[[noreturn]] void become(char* const* argv, int in, int err, bool traced, sock_fprog* filter) {
  signal(SIGPIPE, SIG_DFL);
  dup2(in, 0);
  dup2(err, 1);
  dup2(err, 2);
  if (traced) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(126);
    raise(SIGSTOP);  // the parent sets its options
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter) != 0)
      _exit(126);
  }
  execv(argv[0], argv);
  _exit(127);
}

void set_exit(int status, StoppedProcess* result) {
  result->ended_by_signal = WIFSIGNALED(status);
  result->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Makes the write that the thread is about to do a short one. False: it is no write, or this machine is not known.
bool shorten_write(pid_t thread, double part) {
#ifdef __x86_64__
  user_regs_struct registers{};
  if (ptrace(PTRACE_GETREGS, thread, nullptr, &registers) != 0 || registers.orig_rax != __NR_write ||
      registers.rdi <= 2)
    return false;
  registers.rdx = static_cast<unsigned long long>(part * static_cast<double>(registers.rdx));
  return ptrace(PTRACE_SETREGS, thread, nullptr, &registers) == 0;
#else
  (void)thread, (void)part;
  return false;
#endif
}

class Tracer {
 public:
  Tracer(pid_t child, const StopPlan& plan, StoppedProcess* result) : child_(child), plan_(plan), result_(result) {}

  void run() {
    int status = 0;
    if (waitpid(child_, &status, 0) != child_ || !WIFSTOPPED(status)) return set_exit(status, result_);
    const long options = PTRACE_O_TRACESECCOMP | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL | PTRACE_O_TRACEEXEC;
    if (ptrace(PTRACE_SETOPTIONS, child_, nullptr, options) != 0) throw std::runtime_error("ptrace: options");
    ptrace(PTRACE_CONT, child_, nullptr, 0);
    while (true) {
      const pid_t thread = waitpid(-1, &status, __WALL);
      if (thread < 0 && errno == EINTR) continue;
      if (thread < 0) return;
      if (WIFSTOPPED(status)) on_stop(thread, status);
      else if (thread == child_) return set_exit(status, result_);
    }
  }

 private:
  void on_stop(pid_t thread, int status) {
    const int event = status >> 16, signal = WSTOPSIG(status);
    if (event == PTRACE_EVENT_SECCOMP) return on_file_call(thread);
    // A new thread begins with a SIGSTOP that is ours.
    const bool is_ours = event != 0 || signal == SIGSTOP || signal == SIGTRAP;
    ptrace(PTRACE_CONT, thread, nullptr, is_ours ? 0 : signal);
  }

  void on_file_call(pid_t thread) {
    const int64_t number = ++result_->num_file_calls;
    if (tearing_) {  // the short write is done
      result_->was_torn = true;
      kill(child_, SIGKILL);
      return;
    }
    if (plan_.when == StopPlan::When::kAtFileCall && number == plan_.file_call) {
      tearing_ = plan_.signal == SIGKILL && plan_.torn_part < 1 && shorten_write(thread, plan_.torn_part);
      if (!tearing_) kill(child_, plan_.signal);
      if (plan_.signal == SIGKILL && !tearing_) return;  // it dies before the call
    }
    ptrace(PTRACE_CONT, thread, nullptr, 0);
  }

  const pid_t child_;
  const StopPlan& plan_;
  StoppedProcess* const result_;
  bool tearing_ = false;
};

// Waits until the process ends or the moment comes; true: it has ended.
bool ends_within(pid_t child, int process_fd, double ms, StoppedProcess* result) {
  pollfd fd = {process_fd, POLLIN, 0};
  const auto ns = static_cast<int64_t>(std::max(0.0, ms) * 1e6);
  const timespec timeout = {ns / 1'000'000'000, ns % 1'000'000'000};
  if (ppoll(&fd, 1, &timeout, nullptr) <= 0) return false;
  int status = 0;
  waitpid(child, &status, 0);
  set_exit(status, result);
  return true;
}

void run_by_time(pid_t child, const StopPlan& plan, double timeout_s, StoppedProcess* result) {
  const int process_fd = static_cast<int>(syscall(SYS_pidfd_open, child, 0));
  if (process_fd < 0) throw std::runtime_error("pidfd_open");
  bool ended = false;
  if (plan.when == StopPlan::When::kAfterTime) {
    ended = ends_within(child, process_fd, plan.after_ms, result);
    if (!ended) {
      kill(child, plan.signal);
    }
    if (!ended && plan.twice && !(ended = ends_within(child, process_fd, plan.after_ms, result)))
      kill(child, plan.signal);
  }
  if (!ended && !ends_within(child, process_fd, 1000 * timeout_s, result)) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    result->exit_code = -1;
  }
  close(process_fd);
}

}  // namespace

bool can_count_file_calls() {
#ifdef __SANITIZE_ADDRESS__
  return false;  // LeakSanitizer traces too, and there can be only one
#else
  static const bool can = [] {
    StopPlan plan;
    plan.count_calls = true;
    const TemporaryDirectory dir;
    return run_and_stop({"/bin/sh", "-c", "echo x"}, "/dev/null", dir.file("err"), plan).num_file_calls > 0;
  }();
  return can;
#endif
}

StoppedProcess run_and_stop(const std::vector<std::string>& argv, const std::string& input_path,
                            const std::string& err_path, const StopPlan& plan, double timeout_s) {
  std::vector<char*> arguments;
  for (const std::string& a : argv) arguments.push_back(const_cast<char*>(a.c_str()));
  arguments.push_back(nullptr);
  const int in = open(input_path.c_str(), O_RDONLY | O_CLOEXEC);
  const int err = open(err_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
  if (in < 0 || err < 0) throw std::runtime_error("cannot open " + input_path + " or " + err_path);
  const bool traced = plan.count_calls || plan.when == StopPlan::When::kAtFileCall;
  std::vector<sock_filter> filter = file_call_filter();
  sock_fprog program = {static_cast<unsigned short>(filter.size()), filter.data()};
  StoppedProcess result;
  const auto start = WallClock::now();
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork");
  if (child == 0) become(arguments.data(), in, err, traced, &program);
  close(in);
  close(err);
  if (traced) Tracer(child, plan, &result).run();
  else run_by_time(child, plan, timeout_s, &result);
  result.wall_ms = ms_since(start);
  result.err = read_file(err_path);
  return result;
}

}  // namespace llmb::test
