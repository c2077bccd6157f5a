#include "job/worker_process.h"

#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

namespace llmb {

WorkerProcess::WorkerProcess(StartedProcess process) : process_(std::move(process)) {}

// A process that hangs in a call of a device ends when that returns, if ever.
WorkerProcess::~WorkerProcess() {
  kill();
  await_end();
}

void WorkerProcess::send(MessageKind kind, std::string_view payload) {
  unsent_ += frame(kind, payload);
  flush();
}

// An error shows when the socket is read.
void WorkerProcess::flush() {
  while (has_unsent()) {
    const ssize_t count = ::send(socket(), unsent_.data() + sent_, unsent_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;
    sent_ += static_cast<size_t>(count);
  }
  if (sent_ < unsent_.size() / 2) return;
  unsent_.erase(0, sent_);
  sent_ = 0;
}

bool WorkerProcess::exchange(std::vector<Message>* messages) {
  flush();
  std::array<char, 1 << 16> bytes;
  bool is_open = true;
  constexpr int kMaxReads = 64;  // then the others have their turn
  for (int i = 0; i < kMaxReads; ++i) {
    const ssize_t count = ::recv(socket(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) is_open = errno == EAGAIN || errno == EWOULDBLOCK;
    if (count == 0) is_open = false;
    if (count <= 0) break;
    received_.add({bytes.data(), static_cast<size_t>(count)});
    if (static_cast<size_t>(count) < bytes.size()) break;
  }
  while (auto message = received_.next()) messages->push_back(std::move(*message));
  return is_open;
}

void WorkerProcess::kill() {
  if (!has_ended()) ::kill(pid(), SIGKILL);
}

bool WorkerProcess::has_ended() {
  if (wait_status_) return true;
  int status = 0;
  const pid_t pid = ::waitpid(process_.pid, &status, WNOHANG);
  if (pid == 0) return false;
  wait_status_ = pid < 0 ? 0 : status;
  return true;
}

// It may take a moment to write a core, or to give much memory back.
void WorkerProcess::await_end() {
  constexpr int kTickUs = 2000, kTicks = 1000;
  for (int i = 0; i < kTicks && !has_ended(); ++i) ::usleep(kTickUs);
}

std::string WorkerProcess::ending() {
  await_end();
  if (!wait_status_) return "closed its connection";
  const int status = *wait_status_;
  if (!WIFSIGNALED(status)) return "ended with exit code " + std::to_string(WEXITSTATUS(status));
  const int number = WTERMSIG(status);
  return "killed by signal " + std::to_string(number) + " (" + ::strsignal(number) + ")";
}

}  // namespace llmb
