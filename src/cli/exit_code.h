// The codes that the process exits with. Stable: scripts rely on them.
#pragma once

#include "job/job_ending.h"

namespace llmb {

inline constexpr int kExitOk = 0;  // every line ok and durable
inline constexpr int kExitBug = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitSomeFailed = 3;  // finished; some lines are error records
inline constexpr int kExitModelRefused = 4;
inline constexpr int kExitInputUnreadable = 5;
inline constexpr int kExitOutputFailed = 6;
inline constexpr int kExitResumeRefused = 7;  // what is there belongs to other settings or inputs, or is damaged
inline constexpr int kExitOutputBusy = 8;     // another run holds this output
inline constexpr int kExitDeviceFault = 9;    // or stall
inline constexpr int kExitOutOfMemory = 10;
inline constexpr int kExitTooManyErrors = 11;  // --max-errors
inline constexpr int kExitSignal = 128;        // + the signal's number; running requests were finished
inline constexpr int kExitReaderGone = 141;    // the reader of stdout went away

int exit_code_of(JobEnd end);
int interrupted_exit_code();

}  // namespace llmb
