#include "cli/run.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/memory_reserve.h"
#include "base/stderr_writer.h"
#include "cli/autotune.h"
#include "cli/compare_command.h"
#include "cli/dry_run.h"
#include "cli/energy_meter.h"
#include "cli/exit_code.h"
#include "cli/final_report.h"
#include "cli/flag_names.h"
#include "cli/forecast_text.h"
#include "cli/inspect_command.h"
#include "cli/merge_command.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/report_command.h"
#include "cli/settings.h"
#include "cli/signals.h"
#include "cli/worker_start.h"
#include "core/kv_room.h"
#include "job/job.h"
#include "job/remote_worker.h"
#include "job/supervisor.h"

#ifdef __SANITIZE_THREAD__
// A run that something holds up ends by _exit() and leaves its threads: they are no leak, and a report of one would wait
// for ever where nobody reads stderr. The run ends at once, where the sanitizer would wait for a second.
extern "C" const char* __tsan_default_options() { return "report_thread_leaks=0 atexit_sleep_ms=0"; }
#endif

namespace llmb {

namespace {

int bug(const std::exception& e) {
  write_stderr("llm-batch: bug: ");
  write_stderr(e.what());
  write_stderr("\n");
  return kExitBug;
}

// Makes an exit code and a line on stderr of whatever is thrown, without taking memory.
template <typename Body>
int guarded(const Body& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
  } catch (const std::system_error& e) {  // no memory for another thread, no descriptor for another file
    if (e.code() == std::errc::too_many_files_open || e.code() == std::errc::too_many_files_open_in_system) {
      log_error(e.what());
      return kExitOutOfMemory;
    }
    if (e.code() != std::errc::resource_unavailable_try_again && e.code() != std::errc::not_enough_memory)
      return bug(e);
  } catch (const std::exception& e) {
    return bug(e);
  }
  write_stderr("llm-batch: error: out of memory; try a smaller --max-num-seqs or --kv-cache-memory-bytes\n");
  return kExitOutOfMemory;
}

// The run as the waiting thread sees it.
class RunView {
 public:
  void show(const Job* job) {  // null: none any more
    std::lock_guard lock(mutex_);
    job_ = job;
  }
  void set_exit_code(int code) {  // all is said
    std::lock_guard lock(mutex_);
    exit_code_ = code;
  }
  std::optional<int> exit_code() const {
    std::lock_guard lock(mutex_);
    return exit_code_;
  }
  std::optional<JobSnapshot> snapshot() const {
    std::lock_guard lock(mutex_);
    return job_ ? std::optional(job_->snapshot()) : std::nullopt;
  }

 private:
  mutable std::mutex mutex_;
  const Job* job_ = nullptr;
  std::optional<int> exit_code_;
};

// A reader of stderr may take his time, until a signal asks the run to end.
void let_reader_finish(StderrWriter& writer, int exit_code) {
  constexpr int kTicksAfterSignal = 5;
  for (int ticks = 0; !writer.flush_within(100);)
    if (interrupt_count() > 0 && ++ticks == kTicksAfterSignal) ::_exit(exit_code);
}

constexpr double kEnergyIntervalMs = 10000;

// Takes "cuda" or "cuda:N".
int gpu_of(const std::string& device) {
  const size_t colon = device.find(':');
  return colon == std::string::npos ? 0 : std::atoi(device.c_str() + colon + 1);
}

// Shows on stderr how the job goes on, and measures what it takes.
class Display final : public JobObserver {
 public:
  explicit Display(const Options& options)
      : is_quiet_(options.progress == ProgressKind::kNone),
        price_per_hour_(options.price_per_hour),
        caches_prefixes_(options.job.scheduler.enable_prefix_caching),
        has_answers_(options.job.generation.task == Task::kGenerate),
        progress_(options.progress) {}

  void on_loaded(const JobOptions& options, const ModelFiles& model, const BackendInfo& backend) override {
    if (backend.kind == DeviceKind::kCuda) energy_.emplace(gpu_of(options.device));
    else energy_.emplace(std::nullopt);
    if (is_quiet_) return;
    const std::string settings = describe_model(options, model, backend) + describe_defaults(options, model);
    write_stderr("llm-batch " + options.build + "\n" + settings);
  }
  void on_forecast(const Forecast& forecast, const BackendInfo& backend) override {
    if (is_quiet_) return;
    std::lock_guard lock(mutex_);
    progress_.finish();
    const int64_t row_tokens = forecast.mean_row_tokens();
    ForecastContext context;
    context.pool_tokens = tokens_in_blocks(backend.kv, backend.kv.num_blocks, row_tokens);
    if (caches_prefixes_) context.kept_tokens = tokens_in_blocks(backend.kv, backend.max_idle_blocks, row_tokens);
    context.kv_bytes_per_token = kv_bytes_per_token(backend.kv, row_tokens);
    context.block_size = backend.kv.block_size;
    context.lent_tokens = backend.lent_tokens;
    context.price_per_hour = price_per_hour_;
    context.has_answers = has_answers_;
    write_stderr("forecast  " + forecast_text(forecast, context) + "\n");
  }
  void on_progress(const JobProgress& progress) override {
    std::lock_guard lock(mutex_);
    if (progress.engine.now_ms >= next_energy_ms_) {
      next_energy_ms_ = progress.engine.now_ms + kEnergyIntervalMs;
      energy_->sample();
    }
    if (take_status_request()) progress_.print_status(progress);
    progress_.update(progress);
  }
  void on_computed() override {
    std::lock_guard lock(mutex_);
    if (energy_) energy_->sample();
    progress_.finish();
  }
  void on_new_error(const ErrorCount& error) override {
    std::lock_guard lock(mutex_);
    progress_.print_error(error);
  }

  void on_warning(const std::string& message) override { log_warning(with_flag_names(message)); }

  // That the computing took so far.
  std::vector<EnergyReading> energy() const {
    std::lock_guard lock(mutex_);
    return energy_ ? energy_->readings() : std::vector<EnergyReading>();
  }

 private:
  const bool is_quiet_;
  const std::optional<double> price_per_hour_;
  const bool caches_prefixes_, has_answers_;
  mutable std::mutex mutex_;  // of what follows
  std::optional<EnergyMeter> energy_;
  double next_energy_ms_ = 0;
  Progress progress_;
};

void print_report(const JobReport& report, const Options& options, int exit_code) {
  write_stderr(final_report_json(report, options.job.output.path, exit_code) + "\n");
}

// False where there is no memory for the words.
template <typename Words>
bool say(const Words& words) {
  try {
    words();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

int run_job(const Options& options, const BackendFactory& make, const StartWorker& start_worker,
            const StartRank& start_rank, RunView& view, StderrWriter& writer) {
  Display display(options);
  Job job(options.job, {make, interrupt_count(), display, start_worker, start_rank});
  view.show(&job);
  std::optional<JobEnding> ending;
  const int exit_code = guarded([&] {
    ending = job.run();
    return exit_code_of(ending->end);
  });
  const bool is_silent = exit_code == kExitReaderGone || exit_code == kExitUsage;
  // The job is over: what is said about it changes nothing any more.
  const bool ending_is_said = say([&] {
    if (ending) print_ending(*ending, options, display.energy(), exit_code);
  });
  const bool report_is_said = say([&] {
    if (!is_silent) print_report(job.snapshot().report, options, exit_code);
  });
  if (!ending_is_said || !report_is_said)
    write_stderr("llm-batch: warning: out of memory: this run's last words are not complete; its exit code stands\n");
  view.set_exit_code(exit_code);
  view.show(nullptr);
  if (!job.must_end_process()) return exit_code;
  let_reader_finish(writer, exit_code);
  ::_exit(exit_code);
}

// Runs of a sample.
int run_aside(const Options& options, const BackendFactory& make, RunView& view, StderrWriter& writer,
              int (*runs)(const Options&, const BackendFactory&, bool*)) {
  bool must_end = false;
  const int exit_code = guarded([&] { return runs(options, make, &must_end); });
  view.set_exit_code(exit_code);
  if (!must_end) return exit_code;
  let_reader_finish(writer, exit_code);
  ::_exit(exit_code);
}

void tell_terminal_input(const std::vector<std::string>& inputs) {
  if (isatty(STDIN_FILENO) && std::count(inputs.begin(), inputs.end(), "-") > 0)
    log_info("reading lines from the terminal; end with Ctrl-D");
}

// The run was asked to end, and something from which no call returns holds it up.
[[noreturn]] void leave(const RunView& view, const Options& options, StderrWriter& writer) {
  const int exit_code = view.exit_code().value_or(interrupted_exit_code());
  if (!view.exit_code()) {
    guarded([&] {
      const std::optional<JobSnapshot> last = view.snapshot();
      if (!last) return exit_code;
      log_warning("gave up while " + last->doing + ", which took too long: " + interrupted_message(last->report));
      print_report(last->report, options, exit_code);
      return exit_code;
    });
  }
  writer.flush_within(200);
  ::_exit(exit_code);
}

// `make`, but where a flag asks for another.
BackendFactory factory_for(const Options& options, const BackendFactory& make) {
  if (!options.enable_dbo) return make;
  return [](std::string_view device) { return make_splitting_backend(device); };
}

// One of a job's workers; its words go to the job.
int run_worker(int argc, const char* const* argv, Descriptor socket, const BackendFactory& make) {
  return guarded([&] {
    StderrWriter writer;
    ParsedCommandLine parsed = parse_command_line(argc, argv);
    if (!parsed.exit_code)
      run_remote_worker(std::move(parsed.options.job), std::move(socket), factory_for(parsed.options, make),
                        rank_starter(argc, argv));
    let_reader_finish(writer, *parsed.exit_code);
    return *parsed.exit_code;
  });
}

// One of a model's ranks; rank 0 says what is to be said.
int run_rank(int argc, const char* const* argv, RankSeat seat) {
  return guarded([&] {
    StderrWriter writer;
    ParsedCommandLine parsed = parse_command_line(argc, argv);
    if (!parsed.exit_code) run_remote_rank(std::move(parsed.options.job), std::move(seat), kExitDeviceFault);
    let_reader_finish(writer, *parsed.exit_code);
    return *parsed.exit_code;
  });
}

}  // namespace

int run_command_line(int argc, const char* const* argv, const BackendFactory& make) {
  hold_memory_reserve();
  if (std::optional<Descriptor> socket = take_worker_arguments(&argc, &argv))
    return run_worker(argc, argv, std::move(*socket), make);
  if (std::optional<RankSeat> seat = take_rank_arguments(&argc, &argv)) return run_rank(argc, argv, std::move(*seat));
  return guarded([&] {
    StderrWriter writer;
    RunView view;
    DeviceWatch none;
    Supervisor last_resort(none, interrupt_count(), /*grace_ms=*/0, /*leaves_blocked=*/true);
    int exit_code = kExitBug;
    ParsedCommandLine parsed;
    const WorkEnding ending = last_resort.run([&] {
      exit_code = guarded([&] {
        parsed = parse_command_line(argc, argv);
        if (parsed.exit_code) return *parsed.exit_code;
        const Options& options = parsed.options;
        const BackendFactory factory = factory_for(options, make);
        if (options.command == Command::kReport) return report_command(options);
        if (options.command == Command::kMerge) return merge_command(options);
        if (options.command == Command::kInspect) return inspect_command(options);
        last_resort.set_grace_ms(1000 * options.job.grace_s);
        if (options.command == Command::kCompare) return run_aside(options, factory, view, writer, compare_command);
        tell_terminal_input(options.job.inputs);
        if (options.dry_run) return dry_run(options);
        if (options.autotune) return run_aside(options, factory, view, writer, autotune);
        return run_job(options, factory, worker_starter(argc, argv, rank_grid(options.job).num_ranks()),
                       rank_starter(argc, argv), view, writer);
      });
      view.set_exit_code(exit_code);
      let_reader_finish(writer, exit_code);
    });
    if (ending == WorkEnding::kReturned) return exit_code;
    leave(view, parsed.options, writer);
  });
}

}  // namespace llmb
