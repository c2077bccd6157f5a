#include "job/output_stage.h"

#include <ctime>
#include <utility>

#include "job/input_check.h"
#include "job/side_files.h"

namespace llmb {

// An error that comes of the wish to end is none.
JobStop OutputStage::stop_of(const Status& status) const {
  return keep_going_() ? output_stop(status) : JobStop{JobEnd::kInterrupted, ""};
}

std::optional<JobStop> OutputStage::open() {
  auto target = resolve_output(options_.output.path, options_.inputs);
  if (!target.ok()) return output_stop(target.status());
  target_ = std::move(*target);
  if (target_.is_stream && options_.output.format == OutputFormat::kNpy)
    return JobStop{JobEnd::kOptionRefused,
                   "`output_format` npy needs a file, whose beginning says how many rows there are: give -o FILE"};
  if (const Status status = check_side_files(options_, target_); !status.ok()) return output_stop(status);
  if (!target_.is_stream) {
    auto job = OutputJob::open(options_, target_, keep_going_);
    if (!job.ok()) return output_stop(job.status());
    job_ = std::move(*job);
    return {};
  }
  OutputSinkOptions sink_options;
  sink_options.path = options_.output.path;
  sink_options.inputs = options_.inputs;
  sink_options.keep_waiting = keep_going_;
  auto sink = OutputSink::open(std::move(sink_options), clock_);
  if (!sink.ok()) return stop_of(sink.status());
  sink_ = std::move(*sink);
  return {};
}

Status OutputStage::try_error_file() {
  if (options_.output.error_file.empty() || errors_) return {};
  LLMB_ASSIGN_OR_RETURN(errors_, ErrorFile::open(options_.output.error_file, keep_going_));
  return {};
}

std::optional<JobStop> OutputStage::open_error_file() {
  const Status status = try_error_file();
  if (status.ok()) return {};
  return keep_going_() ? JobStop{JobEnd::kOutputFailed, status.message()} : JobStop{JobEnd::kInterrupted, ""};
}

Status OutputStage::copy_error(std::string_view record) {
  LLMB_RETURN_IF_ERROR(try_error_file());
  return errors_ ? errors_->append(record) : Status();
}

JobStop OutputStage::refuse_input(const Status& status) {
  if (status.code() == StatusCode::kConflict) live_.change([](JobReport& r) { r.resumable = false; });
  return input_stop(status);
}

void OutputStage::set_input(const InputTally& input) {
  if (job_) job_->set_input(input);
}

std::optional<JobStop> OutputStage::examine(const Fingerprint& fingerprint, const LineReader& reader,
                                            std::shared_ptr<const LineFilter> filter) {
  if (!job_) return {};
  const Status status = job_->examine(fingerprint, [this](std::string_view record) { return copy_error(record); });
  if (!status.ok()) return stop_of(status);
  if (!job_->is_complete() && job_->is_continued())
    if (auto stop = refuse_new_lines()) return stop;
  report_skipped();
  if (job_->is_untouched()) return complete_as_found(fingerprint);
  if (!job_->is_continued()) return {};
  if (auto stop = compare_with_inputs(reader, std::move(filter))) return stop;
  report_skipped();
  if (!num_lines_) return {};
  const int64_t num_left = *num_lines_ - job_->num_done();
  live_.change([&](JobReport& r) { r.left = num_left; });
  if (num_left == 0) return complete_as_found(fingerprint);
  return {};
}

std::optional<JobStop> OutputStage::compare_with_inputs(const LineReader& reader,
                                                        std::shared_ptr<const LineFilter> filter) {
  // A stream shows too late which lines have grown: all that may have are answered again.
  InputCheck inputs = {.grown = job_->incomplete_lines()};
  if (are_files(options_.inputs, reader)) {
    const auto lines = open_inputs(options_, std::move(filter));
    Result<InputCheck> checked =
        check_inputs_against(*lines, job_->completed(), job_->incomplete_lines(), keep_going_);
    if (!checked.ok() && !keep_going_()) return JobStop{JobEnd::kInterrupted, ""};
    if (!checked.ok()) return refuse_input(checked.status());
    inputs = std::move(*checked);
    num_lines_ = inputs.num_lines;
    job_->set_input(inputs.tally);
    if (inputs.first_new) job_->set_first_new(*inputs.first_new);
  }
  const auto on_error = [this](std::string_view record) { return copy_error(record); };
  const Status status = job_->settle_incomplete(inputs.grown, on_error);
  if (!status.ok()) return output_stop(status);
  return {};
}

void OutputStage::report_skipped() {
  live_.change([&](JobReport& r) {
    r.done = r.skipped = job_->num_done();
    r.failed = job_->num_failed();
    r.resumable = job_->is_continued();
  });
}

std::optional<JobStop> OutputStage::refuse_new_lines() {
  if (!job_ || (job_->cannot_grow().ok() && cannot_compute_.ok())) return {};
  live_.change([](JobReport& r) { r.resumable = false; });
  if (!job_->cannot_grow().ok()) return JobStop{JobEnd::kResumeRefused, job_->cannot_grow().message()};
  return JobStop{JobEnd::kResumeRefused,
                 options_.output.path + ": begun in a different arithmetic: " + cannot_compute_.message() +
                     ". Continue on a processor that can, choose another output, or start over with `restart`"};
}

JobStop OutputStage::complete_as_found(const Fingerprint& fingerprint) {
  live_.change([](JobReport& r) { r.left = 0; });
  const int64_t num_failed = job_->num_failed();
  if (options_.output.max_errors && num_failed > *options_.output.max_errors) return {JobEnd::kTooManyErrors, ""};
  const auto already = job_->complete_as_found(fingerprint, clock_);
  if (!already.ok()) return output_stop(already.status());
  live_.change([](JobReport& r) { r.resumable = false; });
  if (*already) return {JobEnd::kNothingToDo, ""};
  return {num_failed > 0 ? JobEnd::kCompleteWithErrors : JobEnd::kComplete, ""};
}

std::optional<JobStop> OutputStage::start(const Fingerprint& fingerprint) {
  const auto now = static_cast<int64_t>(std::time(nullptr));
  stamp_ = {job_hash(fingerprint), job_ ? job_->created(now) : now};
  if (!job_) return {};
  auto sink = job_->begin(fingerprint, clock_);
  if (!sink.ok()) return output_stop(sink.status());
  sink_ = std::move(*sink);
  live_.change([](JobReport& r) { r.resumable = true; });
  return {};
}

Status OutputStage::finish(bool is_complete, bool is_in_order) {
  if (!is_complete) return sink_->sync_all();
  if (!job_) return sink_->finish();
  const JobReport written = live_.snapshot().report;
  return job_->complete(*sink_, written.done, written.failed, is_in_order);
}

std::optional<OutputJob::Kept> OutputStage::count_kept() const {
  if (!job_ || !sink_->was_changed()) return {};
  return job_->count_kept();
}

}  // namespace llmb
