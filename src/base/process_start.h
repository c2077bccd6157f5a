// Puts a process in order before it opens a file or starts a thread.
#pragma once

#include "base/status.h"

namespace llmb {

// Gives descriptors 0, 1 and 2 that were closed a place holder that can be neither read nor written. Without it the
// next file that is opened gets such a number, and whatever is said on stderr lands in it. False: that is not possible.
bool open_standard_descriptors();

// Ok where the descriptor (0, 1 or 2) can be read, or written; kIoError names it.
Status check_standard_descriptor(int fd, bool for_writing);

// Threads started from now on have at least 8 MiB of stack, also where the limit (ulimit -s) is lower. Only the first
// thread's stack follows that limit as it grows: so it must not do the work.
void enlarge_thread_stacks();

}  // namespace llmb
