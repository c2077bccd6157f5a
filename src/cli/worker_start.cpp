#include "cli/worker_start.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
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

// The signals that this process handles or ignores have their usual meaning again, but for those that it inherited.
// memory: another descriptor that the process gets; -1: none
int spawn(std::vector<std::string> arguments, std::vector<std::string> environment, int socket, int memory,
          pid_t* pid) {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&files);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&files, socket, kSocket);
  if (memory >= 0) posix_spawn_file_actions_adddup2(&files, memory, kMemory);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  // Also where the program's file has been replaced meanwhile.
  const int error = ::posix_spawn(pid, "/proc/self/exe", &files, &attributes, pointers(arguments).data(),
                                  pointers(environment).data());
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
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
  const int error = spawn(std::move(arguments), std::move(environment), theirs.get(), shared.get(), &process.pid);
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
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(0);
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
