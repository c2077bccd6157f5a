// The output of a job, as the stages of a run see it: opened, compared with what earlier runs left, begun, finished.
// Either a file that is continued (output_job.h), or a stream.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "io/input_tally.h"
#include "io/line_filter.h"
#include "io/line_reader.h"
#include "io/result_writer.h"
#include "job/completed_lines.h"
#include "job/error_file.h"
#include "job/job_ending.h"
#include "job/job_options.h"
#include "job/live_report.h"
#include "job/output_job.h"
#include "job/output_sink.h"
#include "job/run_manifest.h"

namespace llmb {

// Not thread-safe. Calls in this order: open(); where something is recorded, examine(); then start() and finish(), or
// complete_as_found(). What a call returns ends the job.
class OutputStage {
 public:
  // All outlive it.
  OutputStage(const JobOptions& options, LiveReport& live, const KeepGoing& keep_going, const Clock& clock)
      : options_(options), live_(live), keep_going_(keep_going), clock_(clock) {}

  std::optional<JobStop> open();
  bool is_stream() const { return target_.is_stream; }
  const std::string& path() const { return target_.path; }

  // The fingerprint of the runs that this one continues; null: there are none.
  const Fingerprint* recorded() const { return job_ ? job_->recorded() : nullptr; }
  // Why this machine cannot answer lines as they did.
  void set_cannot_compute(Status status) { cannot_compute_ = std::move(status); }
  const Status& cannot_compute() const { return cannot_compute_; }

  // Looks at what is there, and at the inputs where `reader` has files; changes nothing. The fingerprint may be empty
  // where nothing is recorded. Ends the job where the output cannot be continued, or where no line is new.
  // `filter` (may be null): the run's lines.
  std::optional<JobStop> examine(const Fingerprint& fingerprint, const LineReader& reader,
                                 std::shared_ptr<const LineFilter> filter);
  // Lines that need no answer; null: none.
  const CompletedLines* completed() const { return job_ ? &job_->completed() : nullptr; }
  bool is_continued() const { return job_ && job_->is_continued(); }
  std::optional<int64_t> num_lines() const { return num_lines_; }  // of all inputs, where examine() read them

  // Over all lines of the inputs, once they are read; for the manifest.
  void set_input(const InputTally& input);

  // Asks whether new answers may go into this output.
  std::optional<JobStop> refuse_new_lines();
  // No line is new.
  JobStop complete_as_found(const Fingerprint& fingerprint);
  // An input that cannot be read, or is not what was answered.
  JobStop refuse_input(const Status& status);

  // Opens the error file. For start(), or for error records that earlier runs left.
  std::optional<JobStop> open_error_file();
  // From here on the output's files change.
  std::optional<JobStop> start(const Fingerprint& fingerprint);
  OutputSink& sink() { return *sink_; }
  ErrorFile* errors() { return errors_.get(); }  // null: none
  const JobStamp& stamp() const { return stamp_; }

  // Makes what was written durable, and complete where all lines are answered. is_in_order: records were given to the sink
  // in the order that was asked for.
  Status finish(bool is_complete, bool is_in_order);
  // After a run that something else disturbed: what is left.
  std::optional<OutputJob::Kept> count_kept() const;

 private:
  Status try_error_file();
  Status copy_error(std::string_view record);
  std::optional<JobStop> compare_with_inputs(const LineReader& reader, std::shared_ptr<const LineFilter> filter);
  void report_skipped();
  JobStop stop_of(const Status& status) const;

  const JobOptions& options_;
  LiveReport& live_;
  const KeepGoing& keep_going_;
  const Clock& clock_;
  OutputTarget target_;
  std::unique_ptr<OutputJob> job_;  // null where the output is a stream
  std::unique_ptr<ErrorFile> errors_;
  std::unique_ptr<OutputSink> sink_;
  Status cannot_compute_;
  std::optional<int64_t> num_lines_;
  JobStamp stamp_;
};

}  // namespace llmb
