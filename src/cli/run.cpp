#include "cli/run.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "backend/make_backend.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory_reserve.h"
#include "cli/dry_run.h"
#include "cli/exit_code.h"
#include "cli/final_report.h"
#include "cli/fingerprint.h"
#include "cli/input_check.h"
#include "cli/metrics_file.h"
#include "cli/model_files.h"
#include "cli/options.h"
#include "cli/output_job.h"
#include "cli/part_options.h"
#include "cli/progress.h"
#include "cli/settings.h"
#include "cli/side_files.h"
#include "cli/signals.h"
#include "cli/supervisor.h"
#include "cli/version.h"
#include "engine/device_watch.h"
#include "engine/engine.h"
#include "engine/request_intake.h"
#include "engine/result_stream.h"
#include "engine/run_metrics.h"
#include "io/error_file.h"
#include "io/line_reader.h"
#include "io/output_sink.h"

namespace llmb {

namespace {

// One run, stage by stage. A stage that ends the run returns the exit code.
class Run {
 public:
  Run(Options options, const BackendFactory& make_backend) : o_(std::move(options)), make_backend_(make_backend) {
    report_.output = o_.output;
  }

  int execute();
  const FinalReport& report() const { return report_; }
  // A thread hangs in a call: nothing that it uses may be destroyed.
  bool must_end_process() const { return must_end_process_; }

 private:
  using End = std::optional<int>;

  End open_output();
  Status open_error_file();
  int refuse_input(const Status& status);
  void report_skipped();
  End examine_output();
  End wait_for_new_line();
  int finish_without_new_lines();
  End load_backend();
  End start_output();
  int run_supervised();
  End run_steps(Status* engine_status, Status* output_status);
  int finish(const Status& engine_status, Status output_status);
  int finish_blocked();
  int exit_code(const Status& engine_status, const Status& output_status, const Status& input_status,
                bool too_many_errors) const;
  void fill_report(bool is_complete);
  bool over_error_budget(int64_t num_failed) const { return o_.max_errors && num_failed > *o_.max_errors; }

  // What computes, once the model is loaded.
  struct Work {
    Work(Run& run, const EngineOptions& options);
    RunMetrics metrics;
    ResultStream results;
    Progress progress;
    Engine engine;
    const double start_ms;
  };
  EngineOptions engine_options() const;

  Options o_;
  const BackendFactory& make_backend_;
  FinalReport report_;
  const std::shared_ptr<Clock> clock_ = std::make_shared<SteadyClock>();
  std::unique_ptr<LineReader> reader_;
  OutputTarget target_;
  std::unique_ptr<OutputJob> job_;  // null where the output is a stream
  std::unique_ptr<ErrorFile> errors_;
  std::unique_ptr<OutputSink> sink_;
  DeviceChoice device_;
  ModelFiles model_;
  std::optional<Fingerprint> fingerprint_;
  std::optional<FingerprintTask> fingerprint_task_;  // beside the loading of the weights
  std::optional<int64_t> num_lines_;                 // of all inputs
  std::unique_ptr<RequestIntake> intake_;
  std::unique_ptr<Backend> backend_;
  DeviceWatch watch_;
  std::optional<WatchedBackend> watched_backend_;
  std::optional<Supervisor> supervisor_;
  std::unique_ptr<Work> work_;
  bool was_interrupted_ = false;  // before all lines were answered
  bool must_end_process_ = false;
};

int Run::execute() {
  reader_ = std::make_unique<LineReader>(o_.inputs);
  if (const Status status = reader_->check_inputs(); !status.ok()) return fail(kExitInputUnreadable, status);
  if (isatty(STDIN_FILENO) && std::count(o_.inputs.begin(), o_.inputs.end(), "-") > 0)
    log_info("reading lines from the terminal; end with Ctrl-D");
  if (!o_.dry_run) {
    if (const End end = open_output()) return *end;
    auto device = choose_device(o_.device);
    if (!device.ok()) return fail(kExitDeviceFault, device.status());
    device_ = std::move(*device);
    if (!device_.note.empty()) log_warning(device_.note);
  }
  if (const Status found = find_model_dirs(&o_); !found.ok()) return fail(model_files_exit_code(found), found);
  Result<ModelFiles> model = load_model_files(o_);
  if (!model.ok()) return fail(model_files_exit_code(model.status()), model.status());
  model_ = std::move(*model);
  if (job_)
    if (const End end = examine_output()) return *end;
  if (const Status status = load_model_context(o_, &model_); !status.ok())
    return fail(model_files_exit_code(status), status);
  // Reading and tokenising begin while the weights load.
  intake_ = start_intake(o_, model_, std::move(reader_), clock_, job_ ? &job_->completed() : nullptr);
  if (o_.dry_run && o_.progress != ProgressKind::kNone) std::fputs(describe_defaults(o_, model_).c_str(), stderr);
  if (o_.dry_run) return dry_run(*intake_);
  if (job_ && job_->is_continued())
    if (const End end = wait_for_new_line()) return *end;
  return run_supervised();
}

Run::End Run::open_output() {
  auto target = resolve_output(o_.output, o_.inputs);
  if (!target.ok()) return fail(output_exit_code(target.status()), target.status());
  target_ = std::move(*target);
  if (const Status status = check_side_files(o_, target_); !status.ok()) return fail(output_exit_code(status), status);
  if (target_.is_stream) {
    OutputSinkOptions sink_options;
    sink_options.path = o_.output;
    sink_options.inputs = o_.inputs;
    auto sink = OutputSink::open(std::move(sink_options), *clock_);
    if (!sink.ok()) return fail(output_exit_code(sink.status()), sink.status());
    sink_ = std::move(*sink);
  } else {
    auto job = OutputJob::open(o_, target_);
    if (!job.ok()) return fail(output_exit_code(job.status()), job.status());
    job_ = std::move(*job);
  }
  return {};
}

Status Run::open_error_file() {
  if (o_.error_file.empty() || errors_) return {};
  auto errors = ErrorFile::open(o_.error_file);
  if (!errors.ok()) return errors.status();
  errors_ = std::move(*errors);
  return {};
}

int Run::refuse_input(const Status& status) {
  if (status.code() == StatusCode::kConflict) report_.resumable = false;
  return fail(input_exit_code(status), status);
}

// What is there already? Ends the run where it cannot be continued, or where no line is new.
Run::End Run::examine_output() {
  if (job_->recorded() != nullptr) {
    auto fingerprint = compute_fingerprint(o_, model_, device_.identity, job_->recorded());
    if (!fingerprint.ok() && interrupt_count() > 0) return interrupted_exit_code();
    if (!fingerprint.ok()) return fail(kExitModelRefused, fingerprint.status());
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
  report_.left = *num_lines_ - report_.done;
  if (*report_.left == 0) return finish_without_new_lines();
  return {};
}

void Run::report_skipped() {
  report_.done = report_.skipped = job_->num_done();
  report_.failed = job_->num_failed();
  report_.resumable = job_->is_continued();
}

// Weights are loaded only for something to do, also where the input is a pipe.
Run::End Run::wait_for_new_line() {
  while (!intake_->wait_for_item(100)) {
    if (interrupt_count() > 0) return interrupted_exit_code();
    if (!intake_->at_end()) continue;
    const Status status = intake_->status();
    if (!status.ok()) return refuse_input(status);
    return finish_without_new_lines();
  }
  return {};
}

int Run::finish_without_new_lines() {
  report_.left = 0;
  if (over_error_budget(report_.failed)) {
    log_error(std::to_string(report_.failed) + " error records are more than --max-errors allows");
    return kExitTooManyErrors;
  }
  const auto already = job_->complete_as_found(*fingerprint_, *clock_);
  if (!already.ok()) return fail(output_exit_code(already.status()), already.status());
  report_.resumable = false;
  if (*already && o_.progress != ProgressKind::kNone)
    log_info(o_.output + ": complete, nothing to do (" + std::to_string(report_.done) + " lines)");
  return *already || report_.failed == 0 ? kExitOk : kExitSomeFailed;
}

Run::End Run::load_backend() {
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
  std::fputs(("llm-batch " + std::string(kVersion) + "\n" + settings).c_str(), stderr);
  return {};
}

// From here on the output's files change.
Run::End Run::start_output() {
  if (const Status status = open_error_file(); !status.ok()) return fail(kExitOutputFailed, status);
  if (!job_) return {};
  if (!fingerprint_) {
    auto fingerprint = fingerprint_task_->wait();
    if (!fingerprint.ok() && interrupt_count() > 0) return interrupted_exit_code();
    if (!fingerprint.ok()) return fail(kExitModelRefused, fingerprint.status());
    fingerprint_ = std::move(*fingerprint);
  }
  auto sink = job_->begin(*fingerprint_, *clock_);
  if (!sink.ok()) return fail(output_exit_code(sink.status()), sink.status());
  sink_ = std::move(*sink);
  return {};
}

EngineOptions Run::engine_options() const {
  EngineOptions options;
  options.scheduler = scheduler_config(o_, backend_->info(), model_.max_model_len);
  options.grace_ms = 1000 * o_.grace_s;
  // The ledger computes nothing: what it would measure is noise.
  if (device_.name == "ledger") options.virtual_token_ms = 1;
  // The budget is the output's, not this run's: running again and again must not get around it.
  if (o_.max_errors) options.max_errors = *o_.max_errors - report_.failed;
  return options;
}

Run::Work::Work(Run& run, const EngineOptions& options)
    : metrics(run.model_.config, run.model_.slo),
      results(*run.sink_, run.errors_.get(), ResultFormatter({.metrics = !run.o_.no_metrics}), run.o_.order),
      progress(run.o_.progress, run.report_.left, run.intake_->total_bytes()),
      engine(options, *run.watched_backend_, run.model_.context->tokenizer.get(), *run.clock_, *run.intake_, results,
             metrics, interrupt_count(),
             [this](const EngineProgress& p) {
               if (take_status_request()) progress.print_status(p);
               progress.update(p);
             }),
      start_ms(run.clock_->now_ms()) {}

// On the supervised thread. A code where the run ends before its first step.
Run::End Run::run_steps(Status* engine_status, Status* output_status) {
  if (const End end = load_backend()) return end;
  if (const End end = start_output()) return end;
  work_ = std::make_unique<Work>(*this, engine_options());
  supervisor_->begin_steps(1000 *
                           o_.watchdog_timeout_s.value_or(backend_->info().device.starts_with("cpu") ? 3600 : 300));
  try {
    *engine_status = work_->engine.run();
  } catch (const std::bad_alloc&) {
    *engine_status = resource_exhausted("out of memory");
  }
  work_->progress.finish();
  *output_status = work_->results.drain();
  return {};
}

int Run::run_supervised() {
  // A reader that does not read is left; a disk is waited for, as what it holds is not to be lost.
  supervisor_.emplace(watch_, interrupt_count(), 1000 * o_.grace_s, /*can_block=*/target_.is_stream);
  End end;
  Status engine_status, output_status;
  if (job_ && !fingerprint_) fingerprint_task_.emplace(o_, model_, device_.identity);
  const Ending ending = supervisor_->run([&] { end = run_steps(&engine_status, &output_status); });
  if (ending == Ending::kReturned) return end ? *end : finish(engine_status, output_status);
  must_end_process_ = true;
  if (!supervisor_->has_begun_steps()) return interrupted_exit_code();
  if (ending == Ending::kBlocked) return finish_blocked();
  if (ending == Ending::kStalled)
    engine_status =
        device_error("the device has not answered within --watchdog-timeout (" + backend_->info().device + ")");
  work_->progress.finish();
  if (target_.is_stream && !work_->results.drain_within(1000)) return finish_blocked();
  return finish(engine_status, work_->results.drain());
}

// The reader of the output does not read, and the time for it is over.
int Run::finish_blocked() {
  report_.done += work_->results.num_written();
  report_.failed += work_->results.num_failed_written();
  log_warning("the reader of the results does not read: " + interrupted_message(report_));
  return interrupt_count() > 0 ? interrupted_exit_code() : kExitDeviceFault;
}

int Run::finish(const Status& engine_status, Status output_status) {
  const RunMetrics& metrics = work_->metrics;
  const bool too_many_errors = work_->engine.has_too_many_errors();
  const Status input_status = intake_->status();
  was_interrupted_ = interrupt_count() > 0;  // a later signal finds a job that is complete
  const bool is_complete = engine_status.ok() && input_status.ok() && !was_interrupted_ && !too_many_errors;
  if (output_status.ok() && is_complete && job_) output_status = job_->put_in_order();
  if (output_status.ok()) output_status = is_complete ? sink_->finish() : sink_->sync_all();
  if (output_status.ok() && is_complete && job_)
    output_status = job_->complete(report_.done + work_->results.num_written(), report_.failed + metrics.num_failed);
  fill_report(output_status.ok() && is_complete);

  RunContext context;
  context.wall_ms = clock_->now_ms() - work_->start_ms;
  context.backend = backend_->info();
  context.limits_were_given = o_.peak_flops && o_.peak_bandwidth;
  const bool is_device_well = engine_status.ok() && !must_end_process_;
  if (is_device_well && output_status.ok() && metrics.num_steps > 0 && o_.progress != ProgressKind::kNone)
    context.limits = machine_limits(o_, *backend_);
  const int code = exit_code(engine_status, output_status, input_status, too_many_errors);
  // The reader of a pipe who has seen enough wants no more words either.
  if (code == kExitReaderGone) return code;
  const Status& first_error = !output_status.ok() ? output_status : !input_status.ok() ? input_status : engine_status;
  if (!first_error.ok())
    log_error(first_error.message() + (report_.resumable ? "; what is done is kept, run again to continue" : ""));
  else if (too_many_errors)
    log_error(std::to_string(report_.failed) + " error records are more than --max-errors " +
              std::to_string(*o_.max_errors) + " allows: " + interrupted_message(report_) +
              " with a larger budget or --retry-errors");
  else if (was_interrupted_) log_warning(interrupted_message(report_));
  if (o_.progress != ProgressKind::kNone) std::fputs(summary_table(metrics, context).c_str(), stderr);
  if (const std::string path = o_.metrics_path(); !path.empty())
    if (const Status status = append_metrics(path, summary_json(metrics, context, metrics_identity(o_, code)));
        !status.ok())
      log_warning(status.message());
  return code;
}

void Run::fill_report(bool is_complete) {
  report_.done += work_->results.num_written();
  report_.failed += work_->metrics.num_failed;
  report_.resumable = job_ && !is_complete && intake_->status().code() != StatusCode::kConflict;
  if (is_complete) report_.left = 0;
  else if (!num_lines_) num_lines_ = count_lines(o_);
  if (!is_complete && num_lines_) report_.left = *num_lines_ - report_.done;
}

int Run::exit_code(const Status& engine_status, const Status& output_status, const Status& input_status,
                   bool too_many_errors) const {
  if (!output_status.ok()) return output_exit_code(output_status);
  if (!input_status.ok()) return input_exit_code(input_status);
  if (!engine_status.ok()) return engine_exit_code(engine_status);
  if (too_many_errors) return kExitTooManyErrors;
  if (was_interrupted_) return interrupted_exit_code();
  return report_.failed > 0 ? kExitSomeFailed : kExitOk;
}

// What is thrown becomes an exit code and a line on stderr, without taking memory.
template <typename Body>
int guarded(const Body& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
  } catch (const std::system_error& e) {  // no memory for another thread
    if (e.code() != std::errc::resource_unavailable_try_again && e.code() != std::errc::not_enough_memory) {
      std::fprintf(stderr, "llm-batch: bug: %s\n", e.what());
      return kExitBug;
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "llm-batch: bug: %s\n", e.what());
    return kExitBug;
  }
  std::fputs("llm-batch: error: out of memory; try a smaller --max-num-seqs or --kv-cache-memory-bytes\n", stderr);
  return kExitOutOfMemory;
}

int run(const Options& options, const BackendFactory& make) {
  Run job(options, make);
  const int exit_code = guarded([&] { return job.execute(); });
  const bool is_silent = exit_code == kExitReaderGone || exit_code == kExitUsage || options.dry_run;
  if (!is_silent) std::fputs((final_report_json(job.report(), exit_code) + "\n").c_str(), stderr);
  if (job.must_end_process()) ::_exit(exit_code);  // stderr has no buffer
  return exit_code;
}

}  // namespace

int run_command_line(int argc, const char* const* argv, const BackendFactory& make) {
  hold_memory_reserve();
  return guarded([&] {
    const ParsedCommandLine parsed = parse_command_line(argc, argv);
    return parsed.exit_code ? *parsed.exit_code : run(parsed.options, make);
  });
}

}  // namespace llmb
