#include <algorithm>
#include <new>

#include "base/log.h"
#include "base/stderr_writer.h"
#include "cli/batch_run.h"
#include "cli/exit_code.h"
#include "cli/metrics_file.h"
#include "cli/part_options.h"
#include "cli/signals.h"
#include "cli/summary.h"
#include "job/input_check.h"

namespace llmb {

EngineOptions BatchRun::engine_options() const {
  EngineOptions options;
  options.scheduler = scheduler_config(o_, backend_->info(), model_.max_model_len);
  options.model = model_.config;
  options.grace_ms = 1000 * o_.grace_s;
  // The ledger computes nothing: what it would measure is noise.
  if (device_.kind == DeviceKind::kLedger) options.virtual_token_ms = 1;
  return options;
}

CoordinatorOptions BatchRun::coordinator_options() const {
  CoordinatorOptions options;
  options.order = o_.order;
  options.format.metrics = !o_.no_metrics;
  options.slo = model_.slo;
  // The budget is the output's, not this run's: running again and again must not get around it.
  if (o_.max_errors) options.max_errors = *o_.max_errors - report_.failed;
  return options;
}

BatchRun::Work::Work(BatchRun& run, const EngineOptions& options)
    : progress(run.o_.progress, run.report_.left, run.coordinator_->total_bytes()),
      engine(options, *run.watched_backend_, run.model_.context->tokenizer.get(), *run.clock_, *run.coordinator_,
             *run.coordinator_, interrupt_count(),
             [this, &run](const EngineProgress& engine_progress) {
               const JobProgress p = progress_of(*run.coordinator_, engine_progress);
               if (take_status_request()) progress.print_status(p);
               progress.update(p);
             }),
      start_ms(run.clock_->now_ms()) {}

// On the supervised thread. A code where the run ends before its first step.
BatchRun::End BatchRun::run_steps(Status* engine_status, Status* output_status) {
  if (const End end = load_backend()) return end;
  if (const End end = start_output()) return end;
  enter("computing");
  change_report([&](FinalReport&) { live_results_ = &coordinator_->results(); });
  coordinator_->begin_output(*sink_, errors_.get(), {job_hash(*fingerprint_), created_});
  work_ = std::make_unique<Work>(*this, engine_options());
  supervisor_->begin_steps(1000 *
                           o_.watchdog_timeout_s.value_or(backend_->info().kind == DeviceKind::kCpu ? 3600 : 300));
  try {
    *engine_status = work_->engine.run();
  } catch (const std::bad_alloc&) {
    *engine_status = resource_exhausted("out of memory");
  }
  work_->progress.finish();
  *output_status = coordinator_->results().drain();
  return {};
}

int BatchRun::run_supervised() {
  supervisor_.emplace(watch_, interrupt_count(), 1000 * o_.grace_s, /*leaves_blocked=*/false);
  End end;
  Status engine_status, output_status;
  if (!fingerprint_) fingerprint_task_.emplace(o_, model_, inventory_, device_);
  const Ending ending = supervisor_->run([&] { end = run_steps(&engine_status, &output_status); });
  if (ending == Ending::kReturned) return end ? *end : finish(engine_status, output_status);
  must_end_process_ = true;
  if (!supervisor_->has_begun_steps()) return interrupted_exit_code();
  if (ending == Ending::kStalled)
    engine_status =
        device_error("the device has not answered within --watchdog-timeout (" + backend_->info().device + ")");
  work_->progress.finish();
  if (target_.is_stream && !coordinator_->results().drain_within(1000)) return finish_blocked();
  return finish(engine_status, coordinator_->results().drain());
}

// The reader of the output does not read, and the time for it is over.
int BatchRun::finish_blocked() {
  count_results();
  log_warning("the reader of the results does not read: " + interrupted_message(report_));
  return interrupt_count() > 0 ? interrupted_exit_code() : kExitDeviceFault;
}

int BatchRun::finish(const Status& engine_status, Status output_status) {
  const RunMetrics metrics = {coordinator_->results().metrics(), work_->engine.metrics(), work_->engine.num_left()};
  const bool too_many_errors = coordinator_->has_too_many_errors();
  const Status input_status = coordinator_->input_status();
  was_interrupted_ = interrupt_count() > 0;  // a later signal finds a job that is complete
  const bool is_complete = engine_status.ok() && input_status.ok() && !was_interrupted_ && !too_many_errors;
  enter("making the output durable");
  const FinalReport written = snapshot().report;
  if (output_status.ok() && !is_complete) output_status = sink_->sync_all();
  else if (output_status.ok())
    output_status = job_ ? job_->complete(*sink_, written.done, written.failed) : sink_->finish();
  fill_report(output_status.ok() && is_complete);

  RunContext context;
  context.wall_ms = clock_->now_ms() - work_->start_ms;
  context.backend = backend_->info();
  context.limits_were_given = o_.peak_flops && o_.peak_bandwidth;
  const bool is_device_well = engine_status.ok() && !must_end_process_;
  if (is_device_well && output_status.ok() && metrics.steps.num_steps > 0 && o_.progress != ProgressKind::kNone)
    context.limits = machine_limits(o_, *backend_);
  const int code = exit_code(engine_status, output_status, input_status, too_many_errors);
  // The reader of a pipe who has seen enough wants no more words either.
  if (code == kExitReaderGone) return code;
  const Status& first_error = !output_status.ok() ? output_status : !input_status.ok() ? input_status : engine_status;
  if (!first_error.ok() && sink_->was_changed())
    log_error(first_error.message() + "; what is left of it: " + interrupted_message(report_));
  else if (!first_error.ok())
    log_error(first_error.message() + (report_.resumable ? "; what is done is kept, run again to continue" : ""));
  else if (too_many_errors)
    log_error(std::to_string(report_.failed) + " error records are more than --max-errors " +
              std::to_string(*o_.max_errors) + " allows: " + interrupted_message(report_) +
              " with a larger budget or --retry-errors");
  else if (was_interrupted_) log_warning(interrupted_message(report_));
  if (o_.progress != ProgressKind::kNone) write_stderr(summary_table(metrics, context));
  if (const std::string path = o_.metrics_path(); !path.empty())
    if (const Status status = append_metrics(path, summary_json(metrics, context, metrics_identity(o_, code)));
        !status.ok())
      log_warning(status.message());
  return code;
}

void BatchRun::count_results() {
  std::optional<OutputJob::Kept> kept;
  if (job_ && sink_->was_changed()) kept = job_->count_kept();
  change_report([&](FinalReport& r) {
    r.done += coordinator_->results().num_written();
    r.failed += coordinator_->results().num_failed_written();
    live_results_ = nullptr;
    if (!kept) return;
    r.done = kept->num_records;
    r.failed = kept->num_failed;
    r.skipped = std::min(r.skipped, r.done);
  });
}

void BatchRun::fill_report(bool is_complete) {
  count_results();
  const Status input_status = coordinator_->input_status();
  if (!is_complete && !num_lines_) num_lines_ = count_lines(o_);
  change_report([&](FinalReport& r) {
    r.resumable = job_ && !is_complete && input_status.code() != StatusCode::kConflict;
    if (is_complete) r.left = 0;
    else if (input_status.ok() && num_lines_) r.left = *num_lines_ - r.done;
    else r.left.reset();  // it is not known where the input ends
  });
}

int BatchRun::exit_code(const Status& engine_status, const Status& output_status, const Status& input_status,
                        bool too_many_errors) const {
  if (!output_status.ok()) return output_exit_code(output_status);
  if (!input_status.ok()) return input_exit_code(input_status);
  if (!engine_status.ok()) return engine_exit_code(engine_status);
  if (too_many_errors) return kExitTooManyErrors;
  if (was_interrupted_) return interrupted_exit_code();
  return report_.failed > 0 ? kExitSomeFailed : kExitOk;
}

}  // namespace llmb
