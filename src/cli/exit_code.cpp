#include "cli/exit_code.h"

#include "base/log.h"
#include "cli/signals.h"

namespace llmb {

int fail(int exit_code, const Status& status) {
  log_error(status.message());
  return exit_code;
}

int model_exit_code(const Status& status) {
  switch (status.code()) {
    case StatusCode::kResourceExhausted:
      return kExitOutOfMemory;
    case StatusCode::kDeviceError:
      return kExitDeviceFault;
    case StatusCode::kInternal:
      return kExitBug;
    default:
      return kExitModelRefused;
  }
}

int model_files_exit_code(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument ? kExitUsage : model_exit_code(status);
}

int engine_exit_code(const Status& status) {
  switch (status.code()) {
    case StatusCode::kResourceExhausted:
      return kExitOutOfMemory;
    case StatusCode::kDeviceError:
      return kExitDeviceFault;
    case StatusCode::kDataLoss:  // the weights have changed while they were in use
      return kExitModelRefused;
    default:
      return kExitBug;
  }
}

int output_exit_code(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
      return kExitUsage;
    case StatusCode::kBusy:
      return kExitOutputBusy;
    case StatusCode::kCancelled:
      return kExitReaderGone;
    case StatusCode::kConflict:
    case StatusCode::kDataLoss:
    case StatusCode::kUnsupported:
      return kExitResumeRefused;
    case StatusCode::kInternal:
      return kExitBug;
    case StatusCode::kResourceExhausted:
      return kExitOutOfMemory;
    default:
      return kExitOutputFailed;
  }
}

int input_exit_code(const Status& status) {
  switch (status.code()) {
    case StatusCode::kConflict:
      return kExitResumeRefused;
    case StatusCode::kInvalidArgument:
      return kExitUsage;
    case StatusCode::kResourceExhausted:
      return kExitOutOfMemory;
    case StatusCode::kInternal:
      return kExitBug;
    default:
      return kExitInputUnreadable;
  }
}

int interrupted_exit_code() { return kExitSignal + interrupt_signal(); }

}  // namespace llmb
