// Signals that end a run in order: the first stops admission and lets running requests finish, the second abandons
// them.
#pragma once

#include <atomic>

namespace llmb {

// Takes over SIGUSR1, SIGINT, SIGTERM, SIGHUP and SIGXCPU (unless ignored, as under nohup), and ignores SIGPIPE and
// SIGXFSZ, so that the write concerned fails instead. SIGBUS of memory that nobody guards ends the process with one
// line and kExitDeviceFault. Call once, early.
void install_signal_handlers();

// True once for each SIGUSR1 (or several at a time): a status line is asked for.
bool take_status_request();

// How many of them arrived. From the third on the process ends at once.
const std::atomic<int>& interrupt_count();
// The first that arrived, 0 while none has.
int interrupt_signal();

}  // namespace llmb
