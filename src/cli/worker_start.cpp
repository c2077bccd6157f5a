#include "cli/worker_start.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/core_parts.h"
#include "base/file_ops.h"

namespace llmb {

namespace {

constexpr std::string_view kWorkerFlag = "--worker-process";  // not in --help: its value is made here
constexpr std::string_view kRankFlag = "--rank-process";      // likewise
constexpr int kSocket = 3, kMemory = 4;
constexpr std::string_view kGpus = "CUDA_VISIBLE_DEVICES=";

// GPUs [first, first + count) of those that this process sees, as far as they are among them.
std::string gpus_of(int first, int count) {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  std::stringstream names(visible == nullptr ? "" : visible);
  std::string gpus;
  for (int i = 0; i < first + count; ++i) {
    std::string name = std::to_string(i);
    if (visible != nullptr && !std::getline(names, name, ',')) break;
    if (i >= first) gpus += (gpus.empty() ? "" : ",") + name;
  }
  return gpus;
}

std::vector<std::string> environment_of(int first_gpu, int num_gpus) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable)
    if (!std::string_view(*variable).starts_with(kGpus)) variables.push_back(*variable);
  variables.push_back(std::string(kGpus) + gpus_of(first_gpu, num_gpus));
  return variables;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

// The descriptors that the process gets; memory: -1: none
struct Descriptors {
  int socket, memory;
};

bool take(int from, int to) { return ::dup2(from, to) == to; }

bool take_file(const char* path, int flags, int to) {
  const int fd = ::open(path, flags);
  if (fd == to) return true;
  const bool is_taken = fd >= 0 && take(fd, to);
  ::close(fd);
  return is_taken;
}

// In the new process, whose memory is still its parent's: nothing here changes any. Gives an error number.
int become(char* const* arguments, char* const* environment, const Descriptors& gets) {
  // First of all: a process that is stopped ahead of this would outlive its parent until it goes on.
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return errno;
  struct sigaction usual = {}, now = {};
  usual.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number)
    if (::sigaction(number, nullptr, &now) == 0 && now.sa_handler != SIG_DFL && now.sa_handler != SIG_IGN)
      ::sigaction(number, &usual, nullptr);
  if (!take_file("/dev/null", O_RDONLY, STDIN_FILENO) || !take_file("/dev/null", O_WRONLY, STDOUT_FILENO) ||
      !take(gets.socket, kSocket) || (gets.memory >= 0 && !take(gets.memory, kMemory)))
    return errno;
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve("/proc/self/exe", arguments, environment);  // also where the program's file has been replaced meanwhile
  return errno;
}

// The signals that this process handles have their usual meaning again. Gives an error number; 0: it runs.
int spawn(std::vector<std::string> arguments, std::vector<std::string> environment, const Descriptors& gets,
          pid_t* pid) {
  const std::vector<char*> argument_list = pointers(arguments), variables = pointers(environment);
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // no handler of this process runs in the other one
  volatile int error = 0;
  *pid = ::vfork();
  if (*pid == 0) {
    error = become(argument_list.data(), variables.data(), gets);
    ::_exit(1);
  }
  if (*pid < 0) error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (*pid > 0 && error != 0) ::waitpid(*pid, nullptr, 0);
  return error;
}

// This program again, with the same arguments behind two more.
Result<StartedProcess> start_again(int argc, const char* const* argv, std::string_view flag, int index, int count,
                                   std::vector<std::string> environment, int memory) {
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0)
    return device_error(std::string("cannot make a socket: ") + ::strerror(errno));
  // Above those that the process gets, so that none is overwritten by another.
  const Descriptor theirs(real_file_ops(), ::fcntl(sockets[1], F_DUPFD_CLOEXEC, kMemory + 1));
  const Descriptor first(real_file_ops(), sockets[1]);
  const Descriptor shared(real_file_ops(), memory >= 0 ? ::fcntl(memory, F_DUPFD_CLOEXEC, kMemory + 1) : -1);
  StartedProcess process;
  process.socket = Descriptor(real_file_ops(), sockets[0]);
  if (theirs.get() < 0 || (memory >= 0 && shared.get() < 0))
    return device_error(std::string("cannot start a process: ") + ::strerror(errno));
  std::vector<std::string> arguments = {
      program_invocation_name, std::string(flag),
      std::to_string(index) + "/" + std::to_string(count) + "/" + std::to_string(::getpid())};
  arguments.insert(arguments.end(), argv + 1, argv + argc);
  const int error = spawn(std::move(arguments), std::move(environment), {theirs.get(), shared.get()}, &process.pid);
  if (error != 0) return device_error(std::string("cannot start a process: ") + ::strerror(error));
  return process;
}

struct Place {
  int index = 0, count = 0;
};

// Takes the two arguments away, and sets up the process. None: it was not started so.
std::optional<Place> take_arguments(std::string_view flag, int* argc, const char* const** argv) {
  int index = 0, count = 0, parent = 0;
  if (*argc < 3 || (*argv)[1] != flag || std::sscanf((*argv)[2], "%d/%d/%d", &index, &count, &parent) != 3 ||
      index < 0 || index >= count)
    return std::nullopt;
  *argc -= 2;
  *argv += 2;
  // The job passes on what it is told, and ends its processes; a terminal tells all of them.
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) ::signal(number, SIG_IGN);
  if (::getppid() != parent) ::_exit(0);  // it ended before this process could ask to end with it
  ::fcntl(kSocket, F_SETFD, FD_CLOEXEC);
  run_on(divide_cores(usable_cpus(), count)[static_cast<size_t>(index)]);
  return Place{index, count};
}

}  // namespace

StartWorker worker_starter(int argc, const char* const* argv, int num_ranks) {
  ::signal(SIGCHLD, SIG_DFL);  // ignored by whoever started this, it would hide how workers end
  return [argc, argv, num_ranks](int index, int count) {
    return start_again(argc, argv, kWorkerFlag, index, count, environment_of(index * num_ranks, num_ranks), -1);
  };
}

StartRank rank_starter(int argc, const char* const* argv) {
  ::signal(SIGCHLD, SIG_DFL);
  return [argc, argv](int rank, int count, int memory) {
    return start_again(argc, argv, kRankFlag, rank, count, environment_of(rank, 1), memory);
  };
}

std::optional<Descriptor> take_worker_arguments(int* argc, const char* const** argv) {
  if (!take_arguments(kWorkerFlag, argc, argv)) return std::nullopt;
  return Descriptor(real_file_ops(), kSocket);
}

std::optional<RankSeat> take_rank_arguments(int* argc, const char* const** argv) {
  const std::optional<Place> place = take_arguments(kRankFlag, argc, argv);
  if (!place) return std::nullopt;
  ::fcntl(kMemory, F_SETFD, FD_CLOEXEC);
  return RankSeat{place->index, place->count, Descriptor(real_file_ops(), kSocket),
                  Descriptor(real_file_ops(), kMemory)};
}

}  // namespace llmb
