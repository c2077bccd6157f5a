// A worker in another process, as the job that started it sees it: what it is sent, what it says, whether it lives.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/descriptor.h"
#include "base/status.h"
#include "job/worker_messages.h"

namespace llmb {

// A child of this process that answers a job's rows on the socket (run_remote_worker()).
struct StartedProcess {
  pid_t pid = -1;
  Descriptor socket;
};

// Starts a worker, the index-th of so many. It ends with the thread that starts it, or where the socket is closed.
using StartWorker = std::function<Result<StartedProcess>(int index, int count)>;

// Not thread-safe. Nothing blocks, but for ending() and the destructor, which wait a moment for the process's end.
class WorkerProcess {
 public:
  explicit WorkerProcess(StartedProcess process);
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  pid_t pid() const { return process_.pid; }
  int socket() const { return process_.socket.get(); }
  void send(MessageKind kind, std::string_view payload = {});
  bool has_unsent() const { return sent_ < unsent_.size(); }
  // Sends what the socket takes, and adds what has come to `messages`. False: the other end is closed.
  bool exchange(std::vector<Message>* messages);

  void kill();
  // How it ended, in words; waits for it where it has closed its socket and has a moment to go.
  std::string ending();

 private:
  void flush();
  bool has_ended();
  void await_end();

  StartedProcess process_;
  std::string unsent_;
  size_t sent_ = 0;
  MessageBuffer received_;
  std::optional<int> wait_status_;  // once it has ended
};

}  // namespace llmb
