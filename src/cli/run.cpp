#include "cli/run.h"

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "backend/make_backend.h"
#include "base/clock.h"
#include "base/log.h"
#include "cli/exit_code.h"
#include "cli/metrics_file.h"
#include "cli/model_files.h"
#include "cli/progress.h"
#include "cli/settings.h"
#include "cli/signals.h"
#include "cli/version.h"
#include "engine/engine.h"
#include "engine/request_intake.h"
#include "engine/result_stream.h"
#include "engine/run_metrics.h"
#include "io/line_reader.h"
#include "io/output_sink.h"

namespace llmb {

namespace {

int fail(int exit_code, const Status& status) {
  log_error(status.message());
  return exit_code;
}

// Errors while preparing the model.
int model_exit_code(const Status& status) {
  switch (status.code()) {
    case StatusCode::kResourceExhausted: return kExitOutOfMemory;
    case StatusCode::kDeviceError: return kExitDeviceFault;
    case StatusCode::kInternal: return kExitBug;
    default: return kExitModelRefused;
  }
}

int output_exit_code(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument: return kExitUsage;
    case StatusCode::kBusy: return kExitOutputBusy;
    case StatusCode::kCancelled: return kExitReaderGone;
    case StatusCode::kInternal: return kExitBug;
    default: return kExitOutputFailed;
  }
}

LoadOptions load_options(const Options& o, int32_t max_model_len) {
  LoadOptions load;
  load.model_dir = o.model_dir;
  load.load_format = o.load_format == "dummy" ? LoadFormat::kDummy : LoadFormat::kAuto;
  load.dummy_seed = o.seed;
  load.block_size = o.block_size;
  load.kv_cache_bytes = o.kv_cache_bytes.value_or(0);
  load.num_blocks_override = o.num_blocks.value_or(0);
  load.max_num_seqs = o.max_num_seqs;
  load.max_num_batched_tokens = o.max_num_batched_tokens;
  load.max_model_len = max_model_len;
  load.num_threads = o.threads;
  return load;
}

SchedulerConfig scheduler_config(const Options& o, const BackendInfo& backend, int32_t max_model_len) {
  SchedulerConfig config;
  config.batching = o.batching;
  config.max_num_seqs = o.max_num_seqs;
  config.max_num_batched_tokens = o.max_num_batched_tokens;
  config.block_size = backend.kv.block_size;
  config.num_blocks = backend.kv.num_blocks;
  config.max_model_len = max_model_len;
  config.batch_window_ms = o.batch_window_ms;
  return config;
}

MachineLimits machine_limits(const Options& o, Backend& backend) {
  MachineLimits limits;
  if (!o.peak_flops || !o.peak_bandwidth) limits = backend.measure_limits();
  if (o.peak_flops) limits.flops_per_s = *o.peak_flops;
  if (o.peak_bandwidth) limits.bytes_per_s = *o.peak_bandwidth;
  return limits;
}

std::unique_ptr<RequestIntake> start_intake(const Options& o, const ModelFiles& model, std::unique_ptr<LineReader> reader,
                                            std::shared_ptr<const Clock> clock) {
  RequestLimits limits;
  limits.vocab_size = model.config.vocab_size;
  IntakeOptions options;
  options.seed = o.seed;
  options.request_rate = o.request_rate;
  return std::make_unique<RequestIntake>(std::move(reader), std::make_unique<RequestParser>(model.default_params, limits),
                                         model.context, std::move(clock), options);
}

// Reads every line as a run would and computes nothing.
int dry_run(RequestIntake& intake) {
  constexpr int64_t kMaxShown = 20;
  int64_t num_ok = 0, num_bad = 0, num_tokens = 0, longest = 0;
  while (!intake.at_end() && interrupt_count() == 0) {
    const auto item = intake.next(100);
    if (!item) continue;
    if (item->request) {
      const auto size = static_cast<int64_t>(item->request->prompt_tokens.size());
      num_ok++;
      num_tokens += size;
      longest = std::max(longest, size);
      continue;
    }
    if (++num_bad > kMaxShown) continue;
    const LineRef& line = item->failure.line;
    log_error(line.source + ":" + std::to_string(line.line_number) + ": " + item->failure.error->code + ": " +
              item->failure.error->message);
  }
  if (num_bad > kMaxShown) log_error("… and " + std::to_string(num_bad - kMaxShown) + " more bad lines");
  if (interrupt_count() > 0) return kExitSignal + interrupt_signal();
  if (const Status status = intake.status(); !status.ok()) return fail(kExitInputUnreadable, status);
  log_info("dry run: " + std::to_string(num_ok) + " lines ok, " + std::to_string(num_bad) + " bad, " +
           std::to_string(num_tokens) + " prompt tokens, longest prompt " + std::to_string(longest));
  return num_bad > 0 ? kExitSomeFailed : kExitOk;
}

// The exit code of a run whose engine returned `engine_status` and whose results ended in `output_status`.
int run_exit_code(const Status& engine_status, const Status& output_status, const Status& input_status, const RunMetrics& metrics) {
  if (!output_status.ok()) return output_exit_code(output_status);
  if (!input_status.ok()) return kExitInputUnreadable;
  if (!engine_status.ok()) return engine_status.code() == StatusCode::kDeviceError ? kExitDeviceFault : kExitBug;
  if (interrupt_count() > 0) return kExitSignal + interrupt_signal();
  return metrics.num_failed > 0 ? kExitSomeFailed : kExitOk;
}

}  // namespace

int run(const Options& o) {
  const auto clock = std::make_shared<SteadyClock>();
  auto reader = std::make_unique<LineReader>(o.inputs);
  if (const Status status = reader->check_inputs(); !status.ok()) return fail(kExitInputUnreadable, status);
  std::unique_ptr<OutputSink> sink;
  if (!o.dry_run) {
    OutputSinkOptions sink_options;
    sink_options.path = o.output;
    sink_options.inputs = o.inputs;
    auto opened = OutputSink::open(std::move(sink_options), *clock);
    if (!opened.ok()) return fail(output_exit_code(opened.status()), opened.status());
    sink = std::move(*opened);
  }

  Result<ModelFiles> model = load_model_files(o);
  if (!model.ok()) return fail(model.status().code() == StatusCode::kInvalidArgument ? kExitUsage : model_exit_code(model.status()), model.status());
  // Reading and tokenising begin while the weights load.
  const auto intake = start_intake(o, *model, std::move(reader), clock);
  if (o.dry_run) return dry_run(*intake);

  auto backend = make_backend(o.device);
  if (!backend.ok()) return fail(kExitDeviceFault, backend.status());
  const int32_t max_model_len = model->context->max_model_len;
  if (const Status status = (*backend)->load(model->config, load_options(o, max_model_len)); !status.ok())
    return fail(model_exit_code(status), status);
  const BackendInfo& info = (*backend)->info();
  if (o.progress != ProgressKind::kNone)
    std::fputs(("llm-batch " + std::string(kVersion) + "\n" + describe_settings(o, model->config, model->default_params, info, max_model_len)).c_str(), stderr);

  RunMetrics metrics(model->config, model->slo);
  ResultStream results(*sink, ResultFormatter({.metrics = !o.no_metrics}), o.order);
  Progress progress(o.progress);
  EngineOptions engine_options;
  engine_options.scheduler = scheduler_config(o, info, max_model_len);
  Engine engine(engine_options, **backend, model->context->tokenizer.get(), *clock, *intake, results, metrics, interrupt_count(),
                [&](const EngineProgress& p) { progress.update(p, intake->bytes_read(), intake->total_bytes()); });

  const double start_ms = clock->now_ms();
  const Status engine_status = engine.run();
  const Status input_status = intake->status();
  Status output_status = results.drain();
  const bool complete = engine_status.ok() && input_status.ok() && interrupt_count() == 0;
  if (output_status.ok() && complete) output_status = sink->finish();
  progress.finish();

  RunContext context;
  context.wall_ms = clock->now_ms() - start_ms;
  context.backend = info;
  context.limits_were_given = o.peak_flops && o.peak_bandwidth;
  if (output_status.ok() && metrics.num_steps > 0 && o.progress != ProgressKind::kNone) context.limits = machine_limits(o, **backend);
  const int exit_code = run_exit_code(engine_status, output_status, input_status, metrics);
  // The reader of a pipe who has seen enough wants no more words either.
  if (exit_code == kExitReaderGone) return exit_code;
  const Status& first_error = !output_status.ok() ? output_status : !input_status.ok() ? input_status : engine_status;
  if (!first_error.ok()) log_error(first_error.message());
  if (interrupt_count() > 0)
    log_warning("interrupted: " + std::to_string(metrics.num_completed + metrics.num_failed) + " lines done" +
                (sink->is_stream() ? "" : "; what is done is in " + o.output + ".partial"));
  if (o.progress != ProgressKind::kNone) std::fputs(summary_table(metrics, context).c_str(), stderr);
  if (const std::string path = o.metrics_path(); !path.empty())
    if (const Status status = append_metrics(path, summary_json(metrics, context, metrics_identity(o, exit_code))); !status.ok())
      log_warning(status.message());
  return exit_code;
}

}  // namespace llmb
