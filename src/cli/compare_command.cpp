#include "cli/compare_command.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/durable_file.h"
#include "base/log.h"
#include "cli/compare_sample.h"
#include "cli/exit_code.h"
#include "cli/metrics_file.h"
#include "cli/report_file.h"
#include "cli/sample_run.h"
#include "cli/summary.h"

namespace llmb {

namespace {

struct Variant {
  const char* name;
  BatchingMode batching;
  bool shares_prefixes;
  Schedule schedule;
};

constexpr Variant kVariants[] = {
    {"none (batch 1)", BatchingMode::kNone, false, Schedule::kFile},
    {"static", BatchingMode::kStatic, false, Schedule::kFile},
    {"dynamic", BatchingMode::kDynamic, false, Schedule::kFile},
    {"continuous", BatchingMode::kContinuous, false, Schedule::kFile},
    {"continuous, planned", BatchingMode::kContinuous, false, Schedule::kAuto},
    {"continuous, shared", BatchingMode::kContinuous, true, Schedule::kFile},
    {"continuous, shared and planned", BatchingMode::kContinuous, true, Schedule::kAuto},
};
static_assert(std::size(kVariants) <= kMaxReportRuns);

// Lines that warm the machine up and say how long a line takes alone.
constexpr int64_t kNumFirstLines = 8;
// Where nobody says how many: as many as take so long one by one, which is the longest of all runs.
constexpr double kLongestRunMs = 25000;
constexpr int64_t kMinLines = 16, kMaxLines = 100000;

// One after the other, in one folder.
class Comparison {
 public:
  Comparison(const Options& options, const BackendFactory& make, bool* must_end)
      : options_(options), make_(make), must_end_(must_end) {}

  SampleRun run(const Variant& variant, const LineSample& sample) {
    return run_sample(options_of(variant), sample, folder_, make_, must_end_);
  }
  // As of a run that the user had called so.
  std::string metrics_line(const Variant& variant, const SampleRun& run) const {
    const JobOptions o = options_of(variant);
    const JobMetrics& m = *run.ending.metrics;
    const SummaryContext context = summary_context(m, options_.peak_flops, options_.peak_bandwidth);
    return summary_json(m, context, metrics_identity(o, m.backend, exit_code_of(run.ending.end)));
  }
  const ScratchFolder& folder() const { return folder_; }

 private:
  JobOptions options_of(const Variant& variant) const {
    JobOptions o = options_.job;
    o.scheduler.batching = variant.batching;
    o.scheduler.enable_prefix_caching = variant.shares_prefixes;
    o.schedule = variant.schedule;
    return o;
  }

  const Options& options_;
  const BackendFactory& make_;
  bool* const must_end_;
  const ScratchFolder folder_;
};

std::string heading() {
  char line[200];
  std::snprintf(line, sizeof line, "%-32s %9s %9s %10s %10s %7s %10s %10s\n", "batching", "seconds", "faster",
                "requests/s", "tokens/s", "batch", "TTFT p50", "E2E p99");
  return line;
}

std::string row(const Variant& variant, const JobMetrics& m, double first_ms) {
  char line[200];
  const double seconds = std::max(1e-9, m.wall_ms / 1000);
  std::snprintf(line, sizeof line, "%-32s %9.2f %7.2f × %10.2f %10.1f %7.1f %7.2f s  %7.2f s\n", variant.name, seconds,
                first_ms / std::max(1e-6, m.wall_ms), static_cast<double>(m.requests.num_completed) / seconds,
                static_cast<double>(m.requests.num_output_tokens) / seconds,
                m.steps.num_steps > 0 ? m.steps.batch_size_sum / static_cast<double>(m.steps.num_steps) : 0,
                m.requests.ttft_ms.quantile(0.5) / 1000, m.requests.e2el_ms.quantile(0.99) / 1000);
  return line;
}

int64_t num_lines_for(double ms_per_line) {
  return std::clamp(static_cast<int64_t>(kLongestRunMs / std::max(0.01, ms_per_line)), kMinLines, kMaxLines);
}

// "" where all are equal.
std::string difference(const std::vector<SampleRun>& runs) {
  for (size_t i = 1; i < runs.size(); ++i) {
    if (const int64_t count = num_different(runs[0], runs[i]); count > 0)
      return std::to_string(count) + " of " + std::to_string(runs[0].records.size()) + " records differ between " +
             kVariants[0].name + " and " + kVariants[i].name;
  }
  return "";
}

}  // namespace

int compare_command(const Options& options, const BackendFactory& make, bool* must_end) {
  Comparison comparison(options, make, must_end);
  const bool is_quiet = options.progress == ProgressKind::kNone;
  const auto refuse = [](const Status& status, int exit_code) {
    log_error(status.message());
    return exit_code;
  };
  const auto first = take_sample(options.job, kNumFirstLines, "first", comparison.folder());
  if (!first.ok()) return refuse(first.status(), kExitInputUnreadable);
  if (first->num_lines == 0) return refuse(invalid_argument("compare: the inputs have no line"), kExitInputUnreadable);
  const SampleRun warm_up = comparison.run(kVariants[0], *first);
  if (!warm_up.is_complete()) return report_failed_run(kVariants[0].name, warm_up.ending);
  const double ms_per_line = warm_up.ending.metrics->wall_ms / static_cast<double>(first->num_lines);
  const int64_t num_lines = options.sample.value_or(num_lines_for(ms_per_line));
  const auto sample = take_sample(options.job, num_lines, "sample", comparison.folder());
  if (!sample.ok()) return refuse(sample.status(), kExitInputUnreadable);
  if (!is_quiet)
    log_info("compare: " + std::string(sample->has_all ? "all " : "the first ") + std::to_string(sample->num_lines) +
             " lines, " + std::to_string(std::size(kVariants)) + " runs");
  std::vector<SampleRun> runs;
  std::vector<RunLine> lines;
  Status written = print_text(heading());
  for (const Variant& variant : kVariants) {
    runs.push_back(comparison.run(variant, *sample));
    if (!runs.back().is_complete()) return report_failed_run(variant.name, runs.back().ending);
    lines.push_back({variant.name, comparison.metrics_line(variant, runs.back())});
    const JobMetrics& metrics = *runs.back().ending.metrics;
    if (written.ok()) written = print_text(row(variant, metrics, runs[0].ending.metrics->wall_ms));
  }
  const std::string differs = difference(runs);
  if (written.ok())
    written = print_text(differs.empty() ? "answers: the same bytes in all runs\n" : "answers: " + differs + "\n");
  if (!written.ok()) return refuse(written, kExitOutputFailed);
  if (!options.report.empty())
    if (const Status status = write_report(lines, options.price_per_hour, options.report); !status.ok())
      return refuse(status, kExitOutputFailed);
  return runs[0].ending.end == JobEnd::kCompleteWithErrors ? kExitSomeFailed : kExitOk;
}

}  // namespace llmb
