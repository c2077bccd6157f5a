// The part of a job that computes, and how it ends.
#include <algorithm>
#include <new>
#include <utility>

#include "base/log.h"
#include "core/kv_room.h"
#include "job/draft_model.h"
#include "job/input_check.h"
#include "job/job.h"
#include "job/measured_steps.h"
#include "job/speculative_corpus.h"
#include "model/adapter_library.h"

namespace llmb {

namespace {
// For all sequences: a step with more drafts than this costs about as much as the steps that they save.
constexpr int32_t kMaxStepDrafts = 64;
}  // namespace

WorkerOptions Job::worker_options() const {
  WorkerOptions options;
  options.device = model_.device.name;
  options.model = model_.files.config;
  options.scheduler = options_.scheduler;
  options.scheduler.max_model_len = model_.files.max_model_len;
  options.load = options_.load;
  options.load.model_dir = options_.model.model;
  options.load.load_format = options_.model.load_format;
  options.load.dummy_seed = options_.seed;
  options.load.max_num_seqs = options_.scheduler.max_num_seqs;
  options.load.max_num_batched_tokens = options_.scheduler.max_num_batched_tokens;
  options.load.max_model_len = model_.files.max_model_len;
  options.grace_ms = 1000 * options_.grace_s;
  options.speculation = options_.speculation;
  options.load.embeds = options_.generation.task == Task::kEmbed;
  if (options.load.embeds) options.speculation = {};
  if (options.speculation.any()) {
    const int64_t most = int64_t{options_.speculation.max_tokens} * options_.scheduler.max_num_seqs;
    options.scheduler.max_num_drafts = static_cast<int32_t>(std::min<int64_t>(most, kMaxStepDrafts));
    options.load.max_num_drafts = options.scheduler.max_num_drafts;
    options.scheduler.allows_trees = options_.speculation.has_trees();
  } else if (model_.device.kind != DeviceKind::kCuda) {
    // For tokens that a form leaves no choice of. On a GPU they would make every recorded step larger.
    options.scheduler.max_num_drafts = options.load.max_num_drafts = kMaxStepDrafts;
  }
  options.load.verifies_trees = options.scheduler.allows_trees;
  options.load.adapters = model_.files.adapters;
  options.load.drafting_layers = options_.speculation.num_layers;
  return options;
}

double Job::watchdog_ms() const {
  const double default_s = worker_->info().kind == DeviceKind::kCpu ? 3600 : 300;
  return 1000 * options_.watchdog_timeout_s.value_or(default_s);
}

JobEnding Job::compute() {
  WorkerOptions worker = worker_options();
  if (!options_.speculation.corpus.empty()) {
    auto corpus = read_corpus(options_.speculation.corpus, model_.files.context->tokenizer.get());
    if (!corpus.ok()) return ending({JobEnd::kOptionRefused, "`speculative_corpus`: " + corpus.status().message()});
    worker.corpus = std::move(*corpus);
  }
  if (!options_.speculation.draft_model.empty()) {
    auto draft = find_draft_model(options_.speculation.draft_model, model_, worker.load);
    if (!draft.ok()) return ending({JobEnd::kOptionRefused, "`speculative`: " + draft.status().message()});
    worker.draft_model = std::move(*draft);
  }
  if (!options_.speculation.medusa.empty()) {
    auto heads = find_medusa_heads(options_.speculation.medusa, model_);
    if (!heads.ok()) return ending({JobEnd::kOptionRefused, "`speculative`: " + heads.status().message()});
    worker.load.heads_dir = std::move(*heads);
  }
  if (const int32_t num_layers = options_.speculation.num_layers; num_layers > 0)
    if (const Status able = check_drafting_layers(num_layers, model_); !able.ok())
      return ending({JobEnd::kOptionRefused, "`speculative`: " + able.message()});
  worker_ = std::make_unique<Worker>(std::move(worker));
  supervisor_.emplace(worker_->watch(), environment_.interrupted, 1000 * options_.grace_s, /*leaves_blocked=*/false);
  if (!fingerprint_) fingerprint_task_.emplace(options_, model_, keep_going_);
  std::optional<JobStop> stop;
  Outcome outcome;
  const WorkEnding how = supervisor_->run([&] { stop = load_and_run(&outcome); });
  if (how == WorkEnding::kReturned) return stop ? ending(std::move(*stop)) : finish(std::move(outcome));
  must_end_process_ = true;
  if (!supervisor_->has_begun_steps()) return ending({JobEnd::kInterrupted, ""});
  if (how == WorkEnding::kStalled)
    outcome.engine =
        device_error("the device has not answered within `watchdog_timeout` (" + worker_->info().device + ")");
  environment_.observer.on_computed();
  if (output_.is_stream() && !coordinator_->results().drain_within(1000)) return finish_blocked();
  outcome.output = coordinator_->results().drain();
  return finish(std::move(outcome));
}

// On the supervised thread. An end where the job ends before its first step.
std::optional<JobStop> Job::load_and_run(Outcome* outcome) {
  live_.enter("loading the model");
  if (auto stop = worker_->load(environment_.make_backend)) return stop;
  const std::string steps_path = measured_steps_path(options_);
  const std::optional<MeasuredSteps> measured = read_measured_steps(steps_path);
  if (measured && measured->device == worker_->info().device) worker_->set_step_cost(StepCost(measured->curve));
  environment_.observer.on_loaded(options_, model_.files, worker_->info());
  if (auto stop = start_output()) return stop;
  live_.enter("computing");
  const std::optional<int64_t> num_lines = live_.report().left;
  live_.count(coordinator_->results());
  coordinator_->begin_output(output_.sink(), output_.errors(), output_.stamp());
  outcome->start_ms = clock_->now_ms();
  supervisor_->begin_steps(watchdog_ms());
  outcome->engine = worker_->run(*coordinator_, *coordinator_, model_.files.context->tokenizer.get(), *clock_,
                                 environment_.interrupted,
                                 [&](const EngineProgress& engine) { report_progress(engine, num_lines); });
  environment_.observer.on_computed();
  if (!steps_path.empty() && outcome->engine.ok() && worker_->info().kind != DeviceKind::kLedger) {
    const MeasuredSteps steps = measured_steps(worker_->info(), worker_->step_cost());
    if (const Status status = write_measured_steps(steps_path, steps, real_file_ops()); !status.ok())
      log_warning("what steps cost is not kept: " + status.message());
  }
  outcome->output = coordinator_->results().drain();
  return {};
}

Forecast Job::estimate() const {
  const BackendInfo& info = worker_->info();
  RunLimits limits;
  limits.num_slots = options_.scheduler.max_num_seqs;
  limits.max_step_tokens = options_.scheduler.max_num_batched_tokens;
  const Forecaster& forecaster = coordinator_->input_forecast().forecaster();
  limits.pool_tokens = tokens_in_blocks(info.kv, info.kv.num_blocks, forecaster.forecast().mean_row_tokens());
  limits.block_size = info.kv.block_size;
  const bool is_planned = options_.schedule == Schedule::kAuto || options_.schedule == Schedule::kLongestFirst;
  return forecaster.estimate(limits, is_planned, worker_->step_cost());
}

void Job::report_progress(const EngineProgress& engine, std::optional<int64_t> num_lines) {
  coordinator_->set_running(engine.num_running, engine.num_running_tokens);
  const JobProgress progress = progress_of(*coordinator_, engine, num_lines);
  if (!has_forecast_ && progress.forecast.has_all_rows) {
    has_forecast_ = true;
    environment_.observer.on_forecast(estimate(), worker_->info());
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
  metrics.steps = worker_->metrics();
  metrics.speculation = worker_->speculation();
  for (const auto& [id, totals] : metrics.requests.adapters)
    metrics.adapters.emplace_back(model_.files.adapters->name(id), totals);
  metrics.num_left = worker_->num_left();
  metrics.num_equal_rows = coordinator_->num_equal_rows();
  metrics.num_repeated_tokens = coordinator_->input_forecast().num_repeated_tokens();
  metrics.repeated_granularity = coordinator_->input_forecast().repeated_granularity();
  metrics.wall_ms = clock_->now_ms() - outcome.start_ms;
  metrics.backend = worker_->info();
  const bool is_well = outcome.engine.ok() && outcome.output.ok() && !must_end_process_;
  if (options_.measures_machine && is_well && metrics.steps.num_steps > 0) metrics.limits = worker_->measure_limits();
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
