#include "cli/batch_run.h"

#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "backend/cpu/cpu_backend.h"
#include "base/log.h"
#include "base/stderr_writer.h"
#include "cli/dry_run.h"
#include "cli/exit_code.h"
#include "cli/part_options.h"
#include "cli/settings.h"
#include "cli/signals.h"
#include "cli/version.h"
#include "job/input_check.h"
#include "job/side_files.h"

namespace llmb {

namespace {
bool is_not_interrupted() { return interrupt_count() == 0; }
}  // namespace

RunSnapshot BatchRun::snapshot() const {
  std::lock_guard lock(report_mutex_);
  RunSnapshot now = {report_, stage_.load()};
  if (live_results_ == nullptr) return now;
  const int64_t num_written = live_results_->num_written();
  now.report.done += num_written;
  now.report.failed += live_results_->num_failed_written();
  if (now.report.left) *now.report.left -= num_written;
  if (live_results_->is_writing()) now.doing = "writing results";
  return now;
}

int BatchRun::execute() {
  reader_ = std::make_unique<LineReader>(o_.inputs);
  if (const Status status = reader_->check_inputs(); !status.ok()) return fail(input_exit_code(status), status);
  if (isatty(STDIN_FILENO) && std::count(o_.inputs.begin(), o_.inputs.end(), "-") > 0)
    log_info("reading lines from the terminal; end with Ctrl-D");
  if (!o_.dry_run) {
    enter("opening the output");
    if (const End end = open_output()) return *end;
    auto device = choose_device(o_.device);
    if (!device.ok()) return fail(kExitDeviceFault, device.status());
    device_ = std::move(*device);
    if (!device_.note.empty()) log_warning(device_.note);
  }
  enter("reading the model's files");
  if (const Status found = find_model_dirs(&o_); !found.ok()) return fail(model_files_exit_code(found), found);
  Result<ModelInventory> inventory = take_inventory(o_);
  if (!inventory.ok()) return fail(model_exit_code(inventory.status()), inventory.status());
  inventory_ = std::move(*inventory);
  Result<ModelFiles> model = load_model_files(o_);
  if (!model.ok()) return fail(model_files_exit_code(model.status()), model.status());
  model_ = std::move(*model);
  if (const End end = choose_arithmetic()) return *end;
  if (job_) {
    enter("looking at the output");
    if (const End end = examine_output()) return *end;
    enter("reading the model's files");
  }
  if (const Status status = load_model_context(o_, &model_); !status.ok())
    return fail(model_files_exit_code(status), status);
  // Reading and tokenising begin while the weights load.
  auto intake = make_intake(o_, model_, std::move(reader_), clock_, job_ ? &job_->completed() : nullptr);
  enter("reading the input");
  if (o_.dry_run && o_.progress != ProgressKind::kNone) write_stderr(describe_defaults(o_, model_));
  if (o_.dry_run) return dry_run(*intake);
  coordinator_ = std::make_unique<Coordinator>(std::move(intake), coordinator_options());
  if (job_ && job_->is_continued())
    if (const End end = wait_for_new_line()) return *end;
  if (const End end = refuse_new_lines()) return *end;
  return run_supervised();
}

// This run keeps the choices of an earlier one.
BatchRun::End BatchRun::choose_arithmetic() {
  if (o_.dry_run || device_.kind != DeviceKind::kCpu) return {};
  if (job_ && job_->recorded() != nullptr) {
    cannot_compute_ = follow_recorded(*job_->recorded(), device_, &o_);
    if (!cannot_compute_.ok()) return {};  // there may be nothing to do
  }
  const std::optional<Arithmetic> arithmetic = arithmetic_by_name(o_.arithmetic);
  const auto dtype = load_options(o_, model_.max_model_len).dtype;
  Status status = choose_cpu_arithmetic(model_.config, o_.quantization, dtype, arithmetic).status();
  if (status.ok() && arithmetic) status = check_cpu_arithmetic(*arithmetic);
  if (!status.ok()) return fail(model_files_exit_code(status), status);
  return {};
}

// There is something to compute. May it go into this output?
BatchRun::End BatchRun::refuse_new_lines() {
  if (!job_ || (job_->cannot_grow().ok() && cannot_compute_.ok())) return {};
  report_.resumable = false;
  if (!job_->cannot_grow().ok()) return fail(kExitResumeRefused, job_->cannot_grow());
  return fail(kExitResumeRefused,
              conflict(o_.output + ": begun in another arithmetic: " + cannot_compute_.message() +
                       ". Go on with a processor that can, choose another output, or start over with --restart"));
}

BatchRun::End BatchRun::open_output() {
  auto target = resolve_output(o_.output, o_.inputs);
  if (!target.ok()) return fail(output_exit_code(target.status()), target.status());
  target_ = std::move(*target);
  if (const Status status = check_side_files(o_, target_); !status.ok()) return fail(output_exit_code(status), status);
  if (target_.is_stream) {
    OutputSinkOptions sink_options;
    sink_options.path = o_.output;
    sink_options.inputs = o_.inputs;
    sink_options.keep_waiting = is_not_interrupted;
    auto sink = OutputSink::open(std::move(sink_options), *clock_);
    if (!sink.ok() && interrupt_count() > 0) return interrupted_exit_code();
    if (!sink.ok()) return fail(output_exit_code(sink.status()), sink.status());
    sink_ = std::move(*sink);
  } else {
    auto job = OutputJob::open(o_, target_);
    if (!job.ok()) return fail(output_exit_code(job.status()), job.status());
    job_ = std::move(*job);
  }
  return {};
}

Status BatchRun::open_error_file() {
  if (o_.error_file.empty() || errors_) return {};
  auto errors = ErrorFile::open(o_.error_file, is_not_interrupted);
  if (!errors.ok()) return errors.status();
  errors_ = std::move(*errors);
  return {};
}

int BatchRun::refuse_input(const Status& status) {
  if (status.code() == StatusCode::kConflict) change_report([](FinalReport& r) { r.resumable = false; });
  return fail(input_exit_code(status), status);
}

// What is there already? Ends the run where it cannot be continued, or where no line is new.
BatchRun::End BatchRun::examine_output() {
  if (job_->recorded() != nullptr) {
    auto fingerprint = compute_fingerprint(o_, model_, inventory_, device_, job_->recorded());
    if (!fingerprint.ok() && interrupt_count() > 0) return interrupted_exit_code();
    if (!fingerprint.ok()) return fail(model_exit_code(fingerprint.status()), fingerprint.status());
    fingerprint_ = std::move(*fingerprint);
  }
  const OutputJob::OnErrorRecord copy_error = [&](std::string_view record) -> Status {
    if (o_.error_file.empty()) return {};
    LLMB_RETURN_IF_ERROR(open_error_file());
    return errors_->append(record);
  };
  Status status = job_->examine(fingerprint_.value_or(Fingerprint()), copy_error);
  if (!status.ok() && interrupt_count() > 0) return interrupted_exit_code();
  if (!status.ok()) return fail(output_exit_code(status), status);
  if (!job_->is_complete() && job_->is_continued())
    if (const End end = refuse_new_lines()) return end;
  report_skipped();
  if (job_->is_untouched()) return finish_without_new_lines();
  if (!job_->is_continued()) return {};
  // Of a stream it shows too late which lines have grown: all that may have are answered again.
  InputCheck inputs = {.grown = job_->incomplete_lines()};
  if (are_files(o_, *reader_)) {
    Result<InputCheck> checked = check_inputs_against(o_.inputs, job_->completed(), job_->incomplete_lines());
    if (!checked.ok() && interrupt_count() > 0) return interrupted_exit_code();
    if (!checked.ok()) return refuse_input(checked.status());
    inputs = std::move(*checked);
    num_lines_ = inputs.num_lines;
    if (inputs.first_new) job_->set_first_new(*inputs.first_new);
  }
  status = job_->settle_incomplete(inputs.grown, copy_error);
  if (!status.ok()) return fail(output_exit_code(status), status);
  report_skipped();
  if (!num_lines_) return {};
  change_report([&](FinalReport& r) { r.left = *num_lines_ - r.done; });
  if (*report_.left == 0) return finish_without_new_lines();
  return {};
}

void BatchRun::report_skipped() {
  change_report([&](FinalReport& r) {
    r.done = r.skipped = job_->num_done();
    r.failed = job_->num_failed();
    r.resumable = job_->is_continued();
  });
}

// Weights are loaded only for something to do, also where the input is a pipe.
BatchRun::End BatchRun::wait_for_new_line() {
  while (!coordinator_->wait_for_line(100)) {
    if (interrupt_count() > 0) return interrupted_exit_code();
    if (!coordinator_->has_read_all()) continue;
    const Status status = coordinator_->input_status();
    if (!status.ok()) return refuse_input(status);
    return finish_without_new_lines();
  }
  return {};
}

int BatchRun::finish_without_new_lines() {
  change_report([](FinalReport& r) { r.left = 0; });
  if (over_error_budget(report_.failed)) {
    log_error(std::to_string(report_.failed) + " error records are more than --max-errors allows");
    return kExitTooManyErrors;
  }
  const auto already = job_->complete_as_found(*fingerprint_, *clock_);
  if (!already.ok()) return fail(output_exit_code(already.status()), already.status());
  change_report([](FinalReport& r) { r.resumable = false; });
  if (*already && o_.progress != ProgressKind::kNone)
    log_info(o_.output + ": complete, nothing to do (" + std::to_string(report_.done) + " lines)");
  return *already || report_.failed == 0 ? kExitOk : kExitSomeFailed;
}

BatchRun::End BatchRun::load_backend() {
  enter("loading the model");
  auto backend = make_backend_(device_.name);
  if (!backend.ok())
    return fail(backend.status().code() == StatusCode::kResourceExhausted ? kExitOutOfMemory : kExitDeviceFault,
                backend.status());
  backend_ = std::move(*backend);
  watched_backend_.emplace(*backend_, watch_);
  if (const Status status = watched_backend_->load(model_.config, load_options(o_, model_.max_model_len)); !status.ok())
    return fail(model_exit_code(status), status);
  if (o_.progress == ProgressKind::kNone) return {};
  const std::string settings = describe_model(o_, model_, backend_->info()) + describe_defaults(o_, model_);
  write_stderr("llm-batch " + std::string(kVersion) + "\n" + settings);
  return {};
}

// From here on the output's files change.
BatchRun::End BatchRun::start_output() {
  if (const Status status = check_inventory(o_, inventory_); !status.ok()) return fail(model_exit_code(status), status);
  enter("opening the output's files");
  const Status status = open_error_file();
  if (!status.ok() && interrupt_count() > 0) return interrupted_exit_code();
  if (!status.ok()) return fail(kExitOutputFailed, status);
  created_ = static_cast<int64_t>(std::time(nullptr));
  if (!fingerprint_) {
    auto fingerprint = fingerprint_task_->wait();
    if (!fingerprint.ok() && interrupt_count() > 0) return interrupted_exit_code();
    if (!fingerprint.ok()) return fail(model_exit_code(fingerprint.status()), fingerprint.status());
    fingerprint_ = std::move(*fingerprint);
  }
  if (!job_) return {};
  created_ = job_->created(created_);
  auto sink = job_->begin(*fingerprint_, *clock_);
  if (!sink.ok()) return fail(output_exit_code(sink.status()), sink.status());
  sink_ = std::move(*sink);
  change_report([](FinalReport& r) { r.resumable = true; });
  return {};
}

}  // namespace llmb
