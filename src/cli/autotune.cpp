#include "cli/autotune.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/durable_file.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "cli/compare_sample.h"
#include "cli/exit_code.h"
#include "cli/flag_names.h"
#include "cli/sample_run.h"
#include "job/model_files.h"
#include "job/tuned_settings.h"

namespace llmb {

namespace {

constexpr double kBudgetMs = 60000;
// A try takes so long; there are about a dozen.
constexpr double kTryMs = 4000;
constexpr int64_t kNumTrialLines = 64, kFewestLines = 16, kMostLines = 20000;
// A time counts as shorter below this share of the other.
constexpr double kFaster = 0.97;

int give_up(const std::string& message, int exit_code) {
  log_error(with_flag_names(message));
  return exit_code;
}

using Member = int32_t TunedSettings::*;

// A setting and the values that it may have, each twice the one before.
struct Dimension {
  Member member;
  int32_t least, most;
  bool is_asked;
};

class Tuning {
 public:
  Tuning(const JobOptions& options, LineSample sample, const ScratchFolder& folder, const BackendFactory& make,
         bool* must_end)
      : options_(options), sample_(std::move(sample)), folder_(folder), make_(make), must_end_(must_end) {}

  // Goes on from `settings`, one dimension after the other. False: a run did not end, or nobody reads what is printed.
  bool run(const TunedSettings& settings, const std::vector<Dimension>& dimensions) {
    best_ = settings;
    const std::optional<double> ms = measure(settings);
    if (!ms) return false;
    best_ms_ = *ms;
    for (const Dimension& dimension : dimensions) {
      if (dimension.is_asked) continue;
      bool is_better = false;
      if (!walk(dimension, /*upwards=*/true, &is_better)) return false;
      if (!is_better && !walk(dimension, /*upwards=*/false, &is_better)) return false;
    }
    return true;
  }

  const TunedSettings& best() const { return best_; }
  int exit_code() const { return exit_code_; }
  int64_t num_different_records() const { return num_different_; }

 private:
  // As long as each step is faster than the one before.
  bool walk(const Dimension& dimension, bool upwards, bool* is_better) {
    while (clock_.now_ms() < kBudgetMs) {
      const int32_t now = best_.*dimension.member;
      TunedSettings next = best_;
      next.*dimension.member = upwards ? 2 * now : now / 2;
      if (next.*dimension.member < dimension.least || next.*dimension.member > dimension.most) return true;
      std::optional<double> ms = measure(next);
      if (!ms) return false;
      if (*ms >= kFaster * best_ms_) return true;
      // The other work of the machine may have held up the try before: both once more, in turn.
      const std::optional<double> before = measure(best_), again = measure(next);
      if (!before || !again) return false;
      best_ms_ = std::min(best_ms_, *before);
      ms = std::min(*ms, *again);
      if (*ms >= kFaster * best_ms_) return true;
      best_ = next;
      best_ms_ = *ms;
      *is_better = true;
    }
    return true;
  }

  std::optional<double> measure(const TunedSettings& settings) {
    JobOptions options = options_;
    set_settings(settings, &options);
    SampleRun run = run_sample(options, sample_, folder_, make_, must_end_);
    if (!run.is_complete()) {
      exit_code_ = report_failed_run("autotune", run.ending);
      return {};
    }
    const JobMetrics& m = *run.ending.metrics;
    const double ms = std::max(1e-3, m.wall_ms);
    char line[160];
    std::snprintf(line, sizeof line, "%12d %22d %10d %7d %9.2f %9.0f\n", settings.max_num_seqs,
                  settings.max_num_batched_tokens, settings.block_size, settings.num_threads, ms / 1000,
                  static_cast<double>(m.requests.num_input_tokens + m.requests.num_output_tokens) / ms * 1000);
    if (const Status status = print_text(line); !status.ok()) {
      exit_code_ = give_up(status.message(), kExitOutputFailed);
      return {};
    }
    if (first_) num_different_ += num_different(*first_, run);
    else first_ = std::move(run);
    return ms;
  }

  const JobOptions options_;
  const LineSample sample_;
  const ScratchFolder& folder_;
  const BackendFactory& make_;
  bool* const must_end_;
  const SteadyClock clock_;
  TunedSettings best_;
  double best_ms_ = 0;
  std::optional<SampleRun> first_;
  int64_t num_different_ = 0;
  int exit_code_ = kExitOk;
};

std::string flags_of(const TunedSettings& s) {
  return "--max-num-seqs " + std::to_string(s.max_num_seqs) + " --max-num-batched-tokens " +
         std::to_string(s.max_num_batched_tokens) + " --block-size " + std::to_string(s.block_size) + " --threads " +
         std::to_string(s.num_threads);
}

// As many lines as take the time of one try with the settings that are there.
Result<LineSample> choose_sample(const JobOptions& options, const ScratchFolder& folder, const BackendFactory& make,
                                 bool* must_end, int* exit_code) {
  LLMB_ASSIGN_OR_RETURN(LineSample first, take_sample(options, kNumTrialLines, "first", folder));
  if (first.num_lines == 0) return invalid_argument("autotune: the inputs have no line");
  SampleRun run;
  for (int i = 0; i < 2; ++i) {  // once to read weights and caches, once to measure
    run = run_sample(options, first, folder, make, must_end);
    if (run.is_complete()) continue;
    *exit_code = report_failed_run("autotune", run.ending);
    return first;
  }
  const double ms_per_line = run.ending.metrics->wall_ms / static_cast<double>(first.num_lines);
  const auto wanted = static_cast<int64_t>(kTryMs / std::max(1e-3, ms_per_line));
  return take_sample(options, std::clamp(wanted, kFewestLines, kMostLines), "sample", folder);
}

}  // namespace

int autotune(const Options& given, const BackendFactory& make, bool* must_end) {
  JobOptions options = given.job;
  options.measures_machine = false;
  const auto device = choose_device(options.device);
  if (!device.ok()) return give_up(device.status().message(), kExitDeviceFault);
  const Status found = find_model_dirs(&options.model, device->kind != DeviceKind::kLedger);
  if (!found.ok()) return give_up(found.message(), exit_code_of(model_files_stop(found).end));
  if (options.load.num_threads == 0) options.load.num_threads = usable_cpu_count();
  const AskedSettings asked = options.asked;
  options.asked = {true, true, true, true};  // what was found before is not used here
  const ScratchFolder folder;
  int exit_code = kExitOk;
  Result<LineSample> sample = choose_sample(options, folder, make, must_end, &exit_code);
  if (!sample.ok()) return give_up(sample.status().message(), kExitInputUnreadable);
  if (exit_code != kExitOk) return exit_code;
  if (given.progress != ProgressKind::kNone)
    log_info("autotune: " + std::string(sample->has_all ? "all " : "the first ") +
             std::to_string(sample->num_lines) + " lines");
  const Status heading = print_text("max-num-seqs max-num-batched-tokens block-size threads   seconds  tokens/s\n");
  if (!heading.ok()) return give_up(heading.message(), kExitOutputFailed);
  const TunedSettings start = settings_of(options);
  const bool is_on_cpu = device->kind == DeviceKind::kCpu;
  Tuning tuning(options, std::move(*sample), folder, make, must_end);
  const std::vector<Dimension> dimensions = {
      {&TunedSettings::num_threads, 1, start.num_threads, asked.num_threads || !is_on_cpu},
      {&TunedSettings::max_num_seqs, 1, 1024, asked.max_num_seqs},
      {&TunedSettings::max_num_batched_tokens, 64, 16384, asked.max_num_batched_tokens},
      {&TunedSettings::block_size, 8, 128, asked.block_size}};
  const bool is_done = tuning.run(start, dimensions);
  if (!is_done) return tuning.exit_code();
  if (tuning.num_different_records() > 0)
    log_warning("autotune: " + std::to_string(tuning.num_different_records()) + " records differed between tries");
  const std::string path = tuned_settings_path(options);
  const Status kept = write_tuned_settings(path, machine_name(*device), tuning.best(), real_file_ops());
  if (!kept.ok()) return give_up(kept.message(), kExitOutputFailed);
  const Status told = print_text("kept in " + path + ": " + flags_of(tuning.best()) + "\n");
  return told.ok() ? kExitOk : give_up(told.message(), kExitOutputFailed);
}

}  // namespace llmb
