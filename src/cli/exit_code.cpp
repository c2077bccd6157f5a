#include "cli/exit_code.h"

#include "cli/signals.h"

namespace llmb {

int exit_code_of(JobEnd end) {
  switch (end) {
    case JobEnd::kComplete:
    case JobEnd::kNothingToDo:
      return kExitOk;
    case JobEnd::kCompleteWithErrors:
      return kExitSomeFailed;
    case JobEnd::kInterrupted:
      return interrupted_exit_code();
    case JobEnd::kTooManyErrors:
      return kExitTooManyErrors;
    case JobEnd::kOptionRefused:
      return kExitUsage;
    case JobEnd::kModelRefused:
      return kExitModelRefused;
    case JobEnd::kInputUnreadable:
      return kExitInputUnreadable;
    case JobEnd::kOutputFailed:
      return kExitOutputFailed;
    case JobEnd::kReaderGone:
      return kExitReaderGone;
    case JobEnd::kResumeRefused:
      return kExitResumeRefused;
    case JobEnd::kOutputBusy:
      return kExitOutputBusy;
    case JobEnd::kDeviceFault:
      return kExitDeviceFault;
    case JobEnd::kOutOfMemory:
      return kExitOutOfMemory;
    case JobEnd::kBug:
      break;
  }
  return kExitBug;
}

int interrupted_exit_code() { return kExitSignal + interrupt_signal(); }

}  // namespace llmb
