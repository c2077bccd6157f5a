#include "cli/dry_run.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/stderr_writer.h"
#include "cli/exit_code.h"
#include "cli/flag_names.h"
#include "cli/forecast_text.h"
#include "cli/settings.h"
#include "cli/signals.h"
#include "job/done_rows.h"
#include "job/equal_rows.h"
#include "job/input_forecast.h"
#include "job/make_intake.h"
#include "job/measured_steps.h"
#include "job/merge_choice.h"
#include "job/prefix_rows.h"
#include "job/rank_team.h"
#include "job/tuned_settings.h"
#include "job/worker_setup.h"
#include "model/adapter_library.h"

namespace llmb {

namespace {

struct Tally {
  static constexpr int64_t kMaxShown = 20;
  int64_t num_ok = 0, num_bad = 0, num_tokens = 0, longest = 0, num_cut = 0;
  InputForecast forecast;
  std::optional<EqualRows> equal_rows;  // where a run would find them

  explicit Tally(const JobOptions& options) : forecast(options.scheduler.enable_prefix_caching) {
    if (options.schedule != Schedule::kFile && !options.request_rate)
      equal_rows.emplace(static_cast<size_t>(options.plan_memory_bytes));
  }

  void add(RequestIntake& intake, IntakeItem& item) {
    EqualRows::Key key;
    if (item.input) {
      if (equal_rows) key = EqualRows::key_of(*item.input);
      if (key) {
        if (const auto equal = equal_rows->find_equal(key, num_ok, *item.input)) {
          count(equal->prompt);
          return forecast.add_equal(equal->prompt.num_tokens);
        }
      }
      intake.prepare(&item);
    }
    if (item.request) {
      const EqualRows::Prompt prompt = {static_cast<int32_t>(item.request->num_prompt_tokens()),
                                        item.request->num_truncated_tokens};
      if (key) equal_rows->compute(key, num_ok, prompt);
      count(prompt);
      forecast.add(*item.request);
      return;
    }
    if (++num_bad > kMaxShown) return;
    const LineRef& line = item.failure.line;
    log_error(line.source + ":" + std::to_string(line.line_number) + ": " + item.failure.error->code + ": " +
              item.failure.error->message);
  }

  void count(const EqualRows::Prompt& prompt) {
    num_ok++;
    num_tokens += prompt.num_tokens;
    num_cut += prompt.num_truncated_tokens > 0;
    longest = std::max<int64_t>(longest, prompt.num_tokens);
  }
};

int refuse(const JobStop& stop) {
  log_error(with_flag_names(stop.message));
  return exit_code_of(stop.end);
}

Status read_lines(RequestIntake& intake, Tally* tally) {
  auto reading = std::async(std::launch::async, [&] {
    return intake.run([&](IntakeItem item) {
      tally->add(intake, item);
      return interrupt_count() == 0;
    });
  });
  while (reading.wait_for(std::chrono::milliseconds(100)) != std::future_status::ready)
    if (interrupt_count() > 0) intake.stop();
  return reading.get();
}

// By the steps of an earlier run, where there are any.
std::string forecast_run(const JobOptions& job, std::optional<double> price_per_hour, InputForecast& input) {
  const std::optional<MeasuredSteps> measured = read_measured_steps(measured_steps_path(job));
  ForecastContext context;
  context.price_per_hour = price_per_hour;
  context.has_answers = job.generation.task == Task::kGenerate;
  RunLimits limits;
  limits.num_slots = job.scheduler.max_num_seqs;
  limits.max_step_tokens = job.scheduler.max_num_batched_tokens;
  limits.block_size = job.load.block_size;
  if (measured) {
    context.pool_tokens = limits.pool_tokens = measured->pool_tokens;
    context.kv_bytes_per_token = static_cast<double>(measured->kv_bytes_per_token);
    context.block_size = job.load.block_size;
  }
  input.end_input();
  const bool is_planned = job.schedule == Schedule::kAuto || job.schedule == Schedule::kLongestFirst;
  const Forecast forecast =
      input.forecaster().estimate(limits, is_planned, measured ? StepCost(measured->curve) : StepCost());
  return forecast_text(forecast, context) + (measured ? ", as measured on " + measured->device : "");
}

// Which adapters a run would merge. An exit code where it ends here.
std::optional<int> tell_merged(const JobOptions& options, const ModelFiles& model, const KeepGoing& keep_going) {
  if (!options.merges_adapters) return {};
  const auto device = choose_device(options.device);
  const Status able = check_can_merge(options, device.ok() ? device->kind : DeviceKind::kCpu, model.config);
  if (!able.ok()) return refuse({JobEnd::kOptionRefused, able.message()});
  const auto choice = choose_merged(options, model, keep_going);
  if (!choice.ok()) return interrupt_count() > 0 ? interrupted_exit_code() : refuse(input_stop(choice.status()));
  if (const Status room = check_merged_room(options, model, choice->merged); !room.ok())
    return refuse({JobEnd::kOptionRefused, room.message()});
  for (const std::string& decision : choice->decisions) log_info(decision);
  return {};
}

}  // namespace

int dry_run(const Options& dry_options) {
  JobOptions options = dry_options.job;
  auto reader = std::make_unique<LineReader>(options.inputs, kDefaultMaxLineBytes, real_file_ops(), options.data.format);
  if (const Status status = reader->check_inputs(); !status.ok()) return refuse(input_stop(status));
  const Status found = find_model_dirs(&options.model, /*needs_weights=*/options.device != "ledger");
  if (!found.ok()) return refuse(model_files_stop(found));
  const auto device = choose_device(options.device);
  if (device.ok()) use_tuned_settings(*device, &options);
  Result<ModelFiles> model = load_model_files(options);
  if (!model.ok()) return refuse(model_files_stop(model.status()));
  if (const Status status = follow_states(model->config, &options); !status.ok())
    return refuse({JobEnd::kOptionRefused, status.message()});
  if (const auto stop = check_rank_options(options, device.ok() ? device->kind : DeviceKind::kCpu, *model))
    return refuse(*stop);
  if (const Status status = load_model_context(options.model, &*model); !status.ok())
    return refuse(model_files_stop(status));
  if (model->adapters) model->adapters->check_values();
  if (dry_options.progress != ProgressKind::kNone) write_stderr(describe_defaults(options, *model));
  const KeepGoing keep_going = [] { return interrupt_count() == 0; };
  const auto done = read_done_rows(options.done, "", keep_going);
  if (!done.ok()) return refuse(output_stop(done.status()));
  auto rows = choose_rows(options, *model, *done, nullptr, keep_going);
  if (!rows.ok()) return interrupt_count() > 0 ? interrupted_exit_code() : refuse(input_stop(rows.status()));
  reader->keep_only(std::move(*rows));
  if (const auto stop = tell_merged(options, *model, keep_going)) return *stop;
  const auto intake = make_intake(options, *model, std::move(reader), std::make_shared<SteadyClock>(), nullptr);
  Tally tally(options);
  const Status status = read_lines(*intake, &tally);
  if (tally.num_bad > Tally::kMaxShown)
    log_error("… and " + std::to_string(tally.num_bad - Tally::kMaxShown) + " more bad lines");
  if (interrupt_count() > 0) return interrupted_exit_code();
  if (!status.ok()) return refuse(input_stop(status));
  log_info("dry run: " + std::to_string(tally.num_ok) + " lines ok, " + std::to_string(tally.num_bad) + " bad, " +
           std::to_string(tally.num_tokens) + " prompt tokens, longest prompt " + std::to_string(tally.longest) +
           (tally.num_cut > 0 ? ", " + std::to_string(tally.num_cut) + " prompts cut" : ""));
  if (tally.num_ok > 0) log_info("forecast: " + forecast_run(options, dry_options.price_per_hour, tally.forecast));
  return tally.num_bad > 0 ? kExitSomeFailed : kExitOk;
}

}  // namespace llmb
