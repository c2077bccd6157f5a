#include "job/job_ending.h"

namespace llmb {

namespace {

JobEnd model_end(StatusCode code) {
  switch (code) {
    case StatusCode::kResourceExhausted:
      return JobEnd::kOutOfMemory;
    case StatusCode::kDeviceError:
      return JobEnd::kDeviceFault;
    case StatusCode::kInternal:
      return JobEnd::kBug;
    default:
      return JobEnd::kModelRefused;
  }
}

JobEnd input_end(StatusCode code) {
  switch (code) {
    case StatusCode::kConflict:
      return JobEnd::kResumeRefused;
    case StatusCode::kInvalidArgument:
      return JobEnd::kOptionRefused;
    case StatusCode::kResourceExhausted:
      return JobEnd::kOutOfMemory;
    case StatusCode::kInternal:
      return JobEnd::kBug;
    default:
      return JobEnd::kInputUnreadable;
  }
}

JobEnd output_end(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
      return JobEnd::kOptionRefused;
    case StatusCode::kBusy:
      return JobEnd::kOutputBusy;
    case StatusCode::kCancelled:
      return JobEnd::kReaderGone;
    case StatusCode::kConflict:
    case StatusCode::kDataLoss:
    case StatusCode::kUnsupported:
      return JobEnd::kResumeRefused;
    case StatusCode::kInternal:
      return JobEnd::kBug;
    case StatusCode::kResourceExhausted:
      return JobEnd::kOutOfMemory;
    default:
      return JobEnd::kOutputFailed;
  }
}

JobEnd engine_end(StatusCode code) {
  switch (code) {
    case StatusCode::kResourceExhausted:
      return JobEnd::kOutOfMemory;
    case StatusCode::kDeviceError:
      return JobEnd::kDeviceFault;
    case StatusCode::kDataLoss:  // the weights have changed while they were in use
      return JobEnd::kModelRefused;
    default:
      return JobEnd::kBug;
  }
}

}  // namespace

JobStop model_stop(const Status& status) { return {model_end(status.code()), status.message()}; }

// Whoever loads a file says kInvalidArgument only of an option (model_files.h).
JobStop model_files_stop(const Status& status) {
  const bool is_option = status.code() == StatusCode::kInvalidArgument;
  return {is_option ? JobEnd::kOptionRefused : model_end(status.code()), status.message()};
}

JobStop input_stop(const Status& status) { return {input_end(status.code()), status.message()}; }
JobStop output_stop(const Status& status) { return {output_end(status.code()), status.message()}; }
JobStop engine_stop(const Status& status) { return {engine_end(status.code()), status.message()}; }

}  // namespace llmb
