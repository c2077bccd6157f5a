// How a job ends, as a value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/status.h"
#include "engine/step_metrics.h"
#include "job/error_tally.h"
#include "job/request_metrics.h"
#include "speculation/speculator.h"

namespace llmb {

enum class JobEnd {
  kComplete,            // every line has a record, and the output is durable
  kCompleteWithErrors,  // so, and some of the records are errors
  kNothingToDo,         // it was complete before
  kInterrupted,         // asked to end
  kTooManyErrors,       // more error records than max_errors
  kOptionRefused,       // an option does not fit the model, the files or this machine
  kModelRefused,
  kInputUnreadable,
  kOutputFailed,
  kReaderGone,     // of the stream that is the output
  kResumeRefused,  // the output there belongs to other settings or inputs, or is damaged
  kOutputBusy,     // another process holds it
  kDeviceFault,    // or stall
  kOutOfMemory,
  kBug,
};

// The end of a job that its error decides, and the error's words; "" where the end says it all.
struct JobStop {
  JobEnd end = JobEnd::kBug;
  std::string message;
};

// An error as the end of the job, by the stage that it came from.
JobStop model_stop(const Status& status);        // while the backend loads
JobStop model_files_stop(const Status& status);  // configuration, tokenizer, template
JobStop input_stop(const Status& status);
JobStop output_stop(const Status& status);
JobStop engine_stop(const Status& status);

struct JobReport {
  int64_t done = 0;             // records in the output, of this run and of earlier ones
  int64_t failed = 0;           // of them, error records
  int64_t skipped = 0;          // of them, answered by earlier runs
  std::optional<int64_t> left;  // lines without a record; nullopt: not known
  bool resumable = false;       // running the same job again continues
};

// Measurements of this run.
struct JobMetrics {
  RequestMetrics requests;
  std::vector<ErrorCount> errors;  // of failed requests: the first kinds, in order of appearance
  std::vector<std::string> fields_never_kept;  // that records were to repeat, and no line has
  std::vector<std::pair<std::string, AdapterTotals>> adapters;  // that answered rows, by name
  StepMetrics steps;
  SpeculationMetrics speculation;
  int64_t num_left = 0;  // requests that were taken in and given up
  int64_t num_equal_rows = 0;        // answered with another one that is equal
  int64_t num_repeated_tokens = 0;   // of prompts, that an earlier prompt of the run had (Coordinator)
  int32_t repeated_granularity = 1;  // to whose multiples each prompt's share of them was rounded down
  double wall_ms = 0;    // from the first step to the last record
  BackendInfo backend;
  MachineLimits limits;  // {0, 0}: not measured
};

struct JobEnding {
  JobEnd end = JobEnd::kBug;
  std::string message;  // of an error; options are named as in job_options.h
  JobReport report;
  bool output_was_changed = false;    // by something else, while it was written: records may be gone
  bool output_is_blocked = false;     // its reader does not read, and the time for it is over
  std::optional<JobMetrics> metrics;  // where it began to compute
  bool lacks_metrics = false;         // it did, and there was no memory for them

  bool has_computed() const { return metrics || lacks_metrics; }
};

}  // namespace llmb
