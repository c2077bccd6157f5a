// What the process exits with. Stable: scripts rely on it.
#pragma once

#include "base/status.h"

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

// The code of an error that ends a run, by the stage that it came from.
int model_exit_code(const Status& status);        // while the backend loads
int model_files_exit_code(const Status& status);  // configuration, tokenizer, template: a flag may be at fault
int engine_exit_code(const Status& status);
int output_exit_code(const Status& status);
int input_exit_code(const Status& status);
int interrupted_exit_code();

// Says the error on stderr and returns the code.
int fail(int exit_code, const Status& status);

}  // namespace llmb
