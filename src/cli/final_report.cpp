#include "cli/final_report.h"

#include "base/log.h"
#include "base/stderr_writer.h"
#include "cli/flag_names.h"
#include "cli/metrics_file.h"
#include "cli/report_file.h"
#include "cli/summary.h"
#include "io/json_writer.h"

namespace llmb {

namespace {

std::string with_separators(int64_t value) {
  std::string digits = std::to_string(value);
  for (size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, 1, ',');
  return digits;
}

// A job that computed says what became of its work; "" where there is nothing to say.
std::string error_text(const JobEnding& e, const OutputOptions& output) {
  if (e.end == JobEnd::kTooManyErrors)
    return std::to_string(e.report.failed) + " error records, more than the " + std::to_string(*output.max_errors) +
           " that --max-errors allows: " + interrupted_message(e.report) + " with a larger budget or --retry-errors";
  const std::string message = with_flag_names(e.message);
  if (message.empty() || !e.has_computed()) return message;
  if (e.output_was_changed) return message + "; until then: " + interrupted_message(e.report);
  return message + (e.report.resumable ? "; finished results are kept, run again to continue" : "");
}

// Neither keeps the run from being what it was.
void write_metrics(const Options& o, const std::string& line) {
  if (const std::string& path = o.job.output.metrics; !path.empty())
    if (const Status status = append_metrics(path, line); !status.ok()) log_warning(status.message());
  if (o.report.empty()) return;
  if (const Status status = write_report({{"", line}}, o.price_per_hour, o.report); !status.ok())
    log_warning(status.with_context("--report").message());
}

}  // namespace

std::string final_report_json(const JobReport& report, const std::string& output, int exit_code) {
  std::string text;
  JsonWriter json(text);
  json.begin_object();
  const auto integer = [&](const char* name, int64_t value) {
    json.key(name);
    json.integer(value);
  };
  integer("exit_code", exit_code);
  integer("done", report.done);
  integer("failed", report.failed);
  integer("skipped", report.skipped);
  json.key("left");
  if (report.left) json.integer(*report.left);
  else json.null();
  json.key("resumable");
  json.boolean(report.resumable);
  json.key("output");
  json.string(output);
  json.end_object();
  return text;
}

std::string interrupted_message(const JobReport& report) {
  return with_separators(report.done) + " done, " + (report.left ? with_separators(*report.left) : "more") + " left" +
         (report.resumable ? ", run again to continue" : "");
}

void print_ending(const JobEnding& e, const Options& o, const std::vector<EnergyReading>& energy, int exit_code) {
  const bool is_quiet = o.progress == ProgressKind::kNone;
  // The reader of a pipe who has seen enough wants no more words either.
  if (e.end == JobEnd::kReaderGone && e.has_computed()) return;
  if (const std::string error = error_text(e, o.job.output); !error.empty()) log_error(error);
  if (e.output_is_blocked)
    log_warning("the output is blocked: its reader has stopped reading: " + interrupted_message(e.report));
  else if (e.end == JobEnd::kInterrupted && e.has_computed()) log_warning(interrupted_message(e.report));
  if (e.end == JobEnd::kNothingToDo && !is_quiet)
    log_info(o.job.output.path + ": complete, nothing to do (" + std::to_string(e.report.done) + " lines)");
  if (e.lacks_metrics) log_warning("out of memory: this run has no summary; its output and its exit code stand");
  if (!e.metrics) return;
  SummaryContext context = summary_context(*e.metrics, o.peak_flops, o.peak_bandwidth);
  context.energy = energy;
  if (!is_quiet) write_stderr(summary_table(*e.metrics, context));
  write_metrics(o, summary_json(*e.metrics, context, metrics_identity(o.job, e.metrics->backend, exit_code)));
}

}  // namespace llmb
