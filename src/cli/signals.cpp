#include "cli/signals.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include "cli/exit_code.h"

namespace llmb {

namespace {

std::atomic<int> g_count{0};
std::atomic<int> g_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

std::atomic<bool> g_status_requested{false};

void on_status_request(int) { g_status_requested.store(true); }

void on_signal(int signal) {
  int none = 0;
  g_signal.compare_exchange_strong(none, signal);
  if (signal == SIGXCPU && g_count.load() >= 2) return;  // it comes again every second
  if (g_count.fetch_add(1) + 1 >= 3) _exit(128 + signal);
}

// A page of memory is gone that no guard knows (base/mapping_guard.h). What was written before stays; should the last
// record be cut, the next run drops it.
void on_bus_error(int signal, siginfo_t* info, void*) {
  constexpr char kMessage[] =
      "llm-batch: error: a page of memory can no longer be read: the memory, or the disk that holds the program, has "
      "failed; finished results are kept, run again to continue\n";
  if (info->si_code > 0) {                       // not sent by a process
    pollfd entry = {STDERR_FILENO, POLLOUT, 0};  // where nobody reads, nobody is kept waiting
    [[maybe_unused]] const auto count =
        poll(&entry, 1, 0) < 1 ? 0 : write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
    _exit(kExitDeviceFault);
  }
  ::signal(signal, SIG_DFL);
  raise(signal);
}

}  // namespace

void install_signal_handlers() {
  struct sigaction bus_error {};
  bus_error.sa_sigaction = on_bus_error;
  bus_error.sa_flags = SA_SIGINFO;
  sigemptyset(&bus_error.sa_mask);
  sigaction(SIGBUS, &bus_error, nullptr);
  for (const int number : {SIGPIPE, SIGXFSZ}) ::signal(number, SIG_IGN);
  struct sigaction status {};
  status.sa_handler = on_status_request;
  status.sa_flags = SA_RESTART;
  sigemptyset(&status.sa_mask);
  sigaction(SIGUSR1, &status, nullptr);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGXCPU}) {
    struct sigaction action {};
    if (sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = on_signal;
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, nullptr);
  }
}

bool take_status_request() {
  return g_status_requested.load(std::memory_order_relaxed) && g_status_requested.exchange(false);
}

const std::atomic<int>& interrupt_count() { return g_count; }
int interrupt_signal() { return g_signal.load(); }

}  // namespace llmb
