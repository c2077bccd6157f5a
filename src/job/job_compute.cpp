// The part of a job that computes, and how it ends.
#include <algorithm>
#include <chrono>
#include <new>
#include <thread>
#include <utility>

#include "base/log.h"
#include "core/kv_room.h"
#include "core/types.h"
#include "job/input_check.h"
#include "job/job.h"
#include "job/measured_steps.h"
#include "job/stage_rows.h"
#include "job/worker_order.h"
#include "job/worker_pool.h"
#include "job/worker_setup.h"
#include "model/adapter_library.h"

namespace llmb {

// By the rows that are read within a moment.
StageRows Job::expected_rows() const {
  constexpr int64_t kEnoughRows = 64;
  constexpr int kNumLooks = 20;
  Forecast forecast;
  for (int look = 0; look < kNumLooks && !is_interrupted(); ++look) {
    forecast = coordinator_->forecast();
    if (forecast.has_all_rows || forecast.num_rows >= kEnoughRows) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const int64_t num_seqs = std::min<int64_t>(options_.scheduler.max_num_seqs, std::max<int64_t>(1, forecast.num_rows));
  return stage_rows_of(forecast, static_cast<int32_t>(ceil_div(num_seqs, options_.pipeline_parallel_size)));
}

JobEnding Job::compute() {
  if (options_.pipeline_parallel_size > 1) options_.stage_rows = expected_rows();
  WorkerOptions worker;
  if (auto stop = set_up_worker(options_, model_, &worker)) return ending(std::move(*stop));
  const std::vector<std::string> merged = merging_ ? merging_->merged : std::vector<std::string>();
  worker.ranks = rank_options(options_, model_, merged, environment_.start_rank);
  if (options_.num_workers == 0) {
    workers_ = std::make_unique<Worker>(std::move(worker));
  } else {
    WorkerPoolOptions pool = pool_options(options_, model_, merged);
    pool.warn = [this](const std::string& message) { environment_.observer.on_warning(message); };
    workers_ = std::make_unique<WorkerPool>(std::move(pool), environment_.start_worker, environment_.interrupted);
  }
  supervisor_.emplace(workers_->watch(), environment_.interrupted, 1000 * options_.grace_s, /*leaves_blocked=*/false);
  if (!fingerprint_) fingerprint_task_.emplace(options_, model_, keep_going_);
  std::optional<JobStop> stop;
  Outcome outcome;
  const WorkEnding how = supervisor_->run([&] { stop = load_and_run(&outcome); });
  if (how == WorkEnding::kReturned) return stop ? ending(std::move(*stop)) : finish(std::move(outcome));
  must_end_process_ = true;
  if (!supervisor_->has_begun_steps()) return ending({JobEnd::kInterrupted, ""});
  if (how == WorkEnding::kStalled)
    outcome.engine =
        device_error("the device has not answered within `watchdog_timeout` (" + workers_->info().device + ")");
  environment_.observer.on_computed();
  if (output_.is_stream() && !coordinator_->results().drain_within(1000)) return finish_blocked();
  outcome.output = coordinator_->results().drain();
  return finish(std::move(outcome));
}

// On the supervised thread. An end where the job ends before its first step.
std::optional<JobStop> Job::load_and_run(Outcome* outcome) {
  live_.enter("loading the model");
  if (auto stop = workers_->load(environment_.make_backend)) return stop;
  const std::string steps_path = measured_steps_path(options_);
  const std::optional<MeasuredSteps> measured = read_measured_steps(steps_path);
  if (measured && measured->device == workers_->info().device) workers_->set_step_cost(StepCost(measured->curve));
  environment_.observer.on_loaded(options_, model_.files, workers_->info());
  if (auto stop = start_output()) return stop;
  live_.enter("computing");
  const std::optional<int64_t> num_lines = live_.report().left;
  live_.count(coordinator_->results());
  coordinator_->begin_output(output_.sink(), output_.errors(), output_.stamp());
  outcome->start_ms = clock_->now_ms();
  supervisor_->begin_steps(watchdog_ms(options_, workers_->info().kind));
  outcome->engine = workers_->run(*coordinator_, *coordinator_, model_.files.context->tokenizer.get(), *clock_,
                                 environment_.interrupted,
                                 [&](const EngineProgress& engine) { report_progress(engine, num_lines); });
  environment_.observer.on_computed();
  if (!steps_path.empty() && outcome->engine.ok() && workers_->info().kind != DeviceKind::kLedger) {
    const MeasuredSteps steps = measured_steps(workers_->info(), workers_->step_cost());
    if (const Status status = write_measured_steps(steps_path, steps, real_file_ops()); !status.ok())
      log_warning("what steps cost is not kept: " + status.message());
  }
  outcome->output = coordinator_->results().drain();
  return {};
}

Forecast Job::estimate() const {
  const BackendInfo& info = workers_->info();
  RunLimits limits;
  limits.num_slots = options_.scheduler.max_num_seqs;
  limits.max_step_tokens = options_.scheduler.max_num_batched_tokens;
  const Forecaster& forecaster = coordinator_->input_forecast().forecaster();
  limits.pool_tokens = tokens_in_blocks(info.kv, info.kv.num_blocks, forecaster.forecast().mean_row_tokens());
  limits.block_size = info.kv.block_size;
  const bool is_planned = options_.schedule == Schedule::kAuto || options_.schedule == Schedule::kLongestFirst;
  Forecast forecast = forecaster.estimate(limits, is_planned, workers_->step_cost());
  if (forecast.seconds) *forecast.seconds /= workers_->count();
  return forecast;
}

void Job::report_progress(const EngineProgress& engine, std::optional<int64_t> num_lines) {
  coordinator_->set_running(engine.num_running, engine.num_running_tokens);
  const JobProgress progress = progress_of(*coordinator_, engine, num_lines);
  if (!has_forecast_ && progress.forecast.has_all_rows) {
    has_forecast_ = true;
    environment_.observer.on_forecast(estimate(), workers_->info());
  }
  environment_.observer.on_progress(progress);
}

std::optional<JobStop> Job::start_output() {
  if (const Status status = check_inventory(options_.model, model_.inventory); !status.ok()) return model_stop(status);
  live_.enter("opening the output's files");
  if (auto stop = output_.open_error_file()) return stop;
  if (!fingerprint_) {
    auto fingerprint = fingerprint_task_->wait();
    if (!fingerprint.ok()) return stop_unless_ok(fingerprint.status(), model_stop);
    fingerprint_ = std::move(*fingerprint);
    if (merging_) add_merged(merging_->merged, &*fingerprint_);
  }
  return output_.start(*fingerprint_);
}

JobEnding Job::finish_blocked() {
  count_results();
  JobEnding blocked = ending({is_interrupted() ? JobEnd::kInterrupted : JobEnd::kDeviceFault, ""});
  blocked.output_is_blocked = true;
  return blocked;
}

JobEnding Job::finish(Outcome outcome) {
  outcome.was_interrupted = is_interrupted();  // a later signal finds a job that is complete
  const bool is_complete = outcome.engine.ok() && coordinator_->input_status().ok() && !outcome.was_interrupted &&
                           !coordinator_->has_too_many_errors();
  live_.enter("making the output durable");
  if (is_complete) output_.set_input(coordinator_->input_tally());
  if (outcome.output.ok()) outcome.output = output_.finish(is_complete, coordinator_->results().is_in_order());
  report_rest(outcome.output.ok() && is_complete);
  JobEnding end = ending(stop_of(outcome));
  end.output_was_changed = output_.sink().was_changed();
  try {
    end.metrics = metrics(outcome);
  } catch (const std::bad_alloc&) {  // the output is what it is
    end.lacks_metrics = true;
  }
  return end;
}

// The first that went wrong, from the output's side to the device's.
JobStop Job::stop_of(const Outcome& outcome) const {
  if (!outcome.output.ok()) return output_stop(outcome.output);
  if (const Status input = coordinator_->input_status(); !input.ok()) return input_stop(input);
  if (!outcome.engine.ok()) return engine_stop(outcome.engine);
  if (coordinator_->has_too_many_errors()) return {JobEnd::kTooManyErrors, ""};
  if (outcome.was_interrupted) return {JobEnd::kInterrupted, ""};
  return {live_.report().failed > 0 ? JobEnd::kCompleteWithErrors : JobEnd::kComplete, ""};
}

JobMetrics Job::metrics(const Outcome& outcome) {
  JobMetrics metrics;
  metrics.requests = coordinator_->results().metrics();
  metrics.errors = coordinator_->errors().errors();
  metrics.fields_never_kept = coordinator_->fields_never_kept();
  metrics.steps = workers_->metrics();
  metrics.speculation = workers_->speculation();
  for (const auto& [id, totals] : metrics.requests.adapters)
    metrics.adapters.emplace_back(model_.files.adapters->name(id), totals);
  metrics.num_left = workers_->num_left();
  metrics.num_equal_rows = coordinator_->num_equal_rows();
  metrics.num_repeated_tokens = coordinator_->input_forecast().num_repeated_tokens();
  metrics.repeated_granularity = coordinator_->input_forecast().repeated_granularity();
  metrics.wall_ms = clock_->now_ms() - outcome.start_ms - workers_->ending_ms();
  metrics.backend = workers_->info();
  const bool is_well = outcome.engine.ok() && outcome.output.ok() && !must_end_process_;
  if (options_.measures_machine && is_well && metrics.steps.num_steps > 0) {
    live_.enter("measuring the machine");
    metrics.limits = workers_->measure_limits();
  }
  return metrics;
}

void Job::count_results() {
  const std::optional<OutputJob::Kept> kept = output_.count_kept();
  live_.fold();
  if (!kept) return;
  live_.change([&](JobReport& r) {
    r.done = kept->num_records;
    r.failed = kept->num_failed;
    r.skipped = std::min(r.skipped, r.done);
  });
}

void Job::report_rest(bool is_complete) {
  count_results();
  const Status input_status = coordinator_->input_status();
  std::optional<int64_t> num_lines = output_.num_lines();
  if (!is_complete && !num_lines) num_lines = count_lines(options_, filter_);
  live_.change([&](JobReport& r) {
    r.resumable = !output_.is_stream() && !is_complete && input_status.code() != StatusCode::kConflict;
    if (is_complete) r.left = 0;
    else if (input_status.ok() && num_lines) r.left = *num_lines - r.done;
    else r.left.reset();  // it is not known where the input ends
  });
}

}  // namespace llmb
