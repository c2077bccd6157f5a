// What the process exits with. Stable: scripts rely on it.
#pragma once

namespace llmb {

inline constexpr int kExitOk = 0;               // every line ok and durable
inline constexpr int kExitBug = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitSomeFailed = 3;       // finished; some lines are error records
inline constexpr int kExitModelRefused = 4;
inline constexpr int kExitInputUnreadable = 5;
inline constexpr int kExitOutputFailed = 6;
inline constexpr int kExitResumeRefused = 7;    // what is there belongs to other settings or inputs, or is damaged
inline constexpr int kExitOutputBusy = 8;       // another run holds this output
inline constexpr int kExitDeviceFault = 9;
inline constexpr int kExitOutOfMemory = 10;     // at start
inline constexpr int kExitTooManyErrors = 11;   // --max-errors
inline constexpr int kExitSignal = 128;         // + the signal's number; running requests were finished
inline constexpr int kExitReaderGone = 141;     // the reader of stdout went away

}  // namespace llmb
