#include "cli/report_command.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/log.h"
#include "cli/exit_code.h"
#include "cli/metrics_file.h"
#include "cli/report_file.h"
#include "io/line_reader.h"
#include "io/npy.h"
#include "job/output_target.h"
#include "report/read_metrics.h"
#include "report/read_records.h"

namespace llmb {

namespace {

LineReader open_lines(const std::string& path) {
  return LineReader({path}, kDefaultMaxLineBytes, real_file_ops(), InputFormat::kJsonLines);
}

// The newest run of the metrics file beside an output; nullopt where there is none.
std::optional<RunData> metrics_beside(const std::string& output) {
  const std::string path = metrics_beside_path(output);
  if (path.empty() || ::access(path.c_str(), R_OK) != 0) return std::nullopt;
  LineReader lines = open_lines(path);
  std::optional<RunData> newest;
  for (auto line = lines.next(); line.ok() && line->has_value(); line = lines.next())
    if (auto run = read_metrics_line((*line)->bytes); run.ok()) newest = std::move(*run);
  return newest;
}

// An output that several runs wrote, one after the other: the times of the last are not those of all records.
void drop_figures_of_one_run(RunData* run) {
  RunData kept;
  kept.facts = std::move(run->facts);
  kept.facts.emplace_back("note", "several runs wrote this output: figures are those of its records");
  *run = std::move(kept);
}

Result<RunData> read_output(const std::string& path, LineReader& lines, std::string first_line) {
  RecordFigures figures;
  if (!figures.add(first_line)) return invalid_argument(path + ": neither a metrics file nor an output of llm-batch");
  int64_t num_strange = 0;
  while (true) {
    LLMB_ASSIGN_OR_RETURN(const std::optional<InputLine> line, lines.next());
    if (!line) break;
    num_strange += !figures.add(line->bytes);
  }
  if (num_strange > 0) log_warning(path + ": " + std::to_string(num_strange) + " lines are no records and do not count");
  RunData run;
  if (std::optional<RunData> metrics = metrics_beside(path)) {
    run = std::move(*metrics);
    if (run.completed + run.failed != figures.num_records()) drop_figures_of_one_run(&run);
  }
  if (run.facts.empty()) run.facts.emplace_back("output", path);
  figures.put_into(&run);
  return run;
}

// The records of a .npy file are those of its index.
Result<RunData> read_rows(const std::string& path) {
  const std::string index = OutputTarget{.path = path}.index();
  LineReader lines = open_lines(index);
  LLMB_ASSIGN_OR_RETURN(std::optional<InputLine> line, lines.next());
  if (!line) return invalid_argument(index + ": no line in it");
  return read_output(path, lines, std::move(line->bytes));
}

// Appends the runs that a file tells of.
Status read_runs(const std::string& path, std::vector<RunData>* runs) {
  LineReader lines = open_lines(path);
  LLMB_ASSIGN_OR_RETURN(std::optional<InputLine> line, lines.next());
  if (!line) return invalid_argument(path + ": no line in it");
  if (line->bytes.starts_with(kNpyMagic)) {
    LLMB_ASSIGN_OR_RETURN(runs->emplace_back(), read_rows(path));
    return {};
  }
  if (auto run = read_metrics_line(line->bytes); !run.ok()) {
    LLMB_ASSIGN_OR_RETURN(RunData output, read_output(path, lines, std::move(line->bytes)));
    runs->push_back(std::move(output));
    return {};
  }
  std::vector<RunData> found;
  for (; line; ) {
    auto run = read_metrics_line(line->bytes);
    if (run.ok()) found.push_back(std::move(*run));
    else log_warning(path + ":" + std::to_string(line->line.line_number) + ": " + run.status().message());
    LLMB_ASSIGN_OR_RETURN(line, lines.next());
  }
  const size_t begin = found.size() > kMaxReportRuns ? found.size() - kMaxReportRuns : 0;
  if (begin > 0) log_info(path + ": the newest " + std::to_string(kMaxReportRuns) + " of " + std::to_string(found.size()) + " runs");
  std::move(found.begin() + static_cast<std::ptrdiff_t>(begin), found.end(), std::back_inserter(*runs));
  return {};
}

std::string fact(const RunData& run, const char* name) {
  const auto at = std::find_if(run.facts.begin(), run.facts.end(), [&](const auto& f) { return f.first == name; });
  return at == run.facts.end() ? "" : at->second;
}

// By the output's name; where that does not tell them apart, also by a number.
void name_runs(std::vector<RunData>* runs) {
  if (runs->size() < 2) return;
  std::map<std::string, int> num_runs, numbers;
  for (RunData& run : *runs) {
    const std::string output = fact(run, "output");
    run.name = output.substr(output.rfind('/') + 1);
    if (run.name.empty() || run.name == "-") run.name = "run";
    ++num_runs[run.name];
  }
  for (RunData& run : *runs)
    if (num_runs[run.name] > 1) run.name += " " + std::to_string(++numbers[run.name]);
}

int fail(const Status& status, int exit_code) {
  log_error(status.message());
  return exit_code;
}

}  // namespace

int report_command(const Options& o) {
  const std::string path = o.report.empty() ? o.job.output.path : o.report;
  if (path == "-" && ::isatty(STDOUT_FILENO))
    return fail(invalid_argument("report: the page would go to the terminal; name a file: -o report.html"), kExitUsage);
  std::vector<RunData> runs;
  for (const std::string& input : o.job.inputs)
    if (const Status status = read_runs(input, &runs); !status.ok()) return fail(status, kExitInputUnreadable);
  if (runs.size() > kMaxReportRuns)
    return fail(invalid_argument("report: " + std::to_string(runs.size()) + " runs; at most " +
                                 std::to_string(kMaxReportRuns) + " stand side by side"),
                kExitUsage);
  name_runs(&runs);
  if (const Status status = write_page(runs, o.price_per_hour, path); !status.ok()) return fail(status, kExitOutputFailed);
  return kExitOk;
}

}  // namespace llmb
