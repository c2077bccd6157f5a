#include "cli/merge_command.h"

#include <string>
#include <vector>

#include "base/log.h"
#include "base/stderr_writer.h"
#include "cli/exit_code.h"
#include "cli/final_report.h"
#include "cli/flag_names.h"
#include "cli/merged_metrics.h"
#include "cli/metrics_file.h"
#include "cli/signals.h"
#include "job/merge.h"

namespace llmb {

namespace {

// The code with which a run ends for the same reason.
int exit_code_for(const Status& status) {
  if (status.code() == StatusCode::kCancelled) return interrupted_exit_code();
  return exit_code_of(output_stop(status).end);
}

// Neither keeps the merge from being done.
void write_merged_metrics(const Options& o, const MergeResult& merged, int exit_code) {
  std::string path = o.job.output.metrics;
  if (path == "none") return;
  const std::string& output = o.job.inputs[0];
  if (path.empty()) path = metrics_beside_path(output);
  if (path.empty()) return;
  std::vector<std::string> files;
  for (const std::string& shard : merged.shards) files.push_back(metrics_beside_path(shard));
  const auto line = merged_metrics(files, {output, merged.shards, merged.num_records, merged.num_failed, exit_code});
  const Status status = line.ok() ? append_metrics(path, *line) : line.status();
  if (!status.ok()) log_warning("merge: the metrics of the shards are not summed: " + status.message());
}

}  // namespace

int merge_command(const Options& o) {
  MergeOptions options;
  options.build = o.job.build;
  options.output = o.job.inputs[0];
  options.shards.assign(o.job.inputs.begin() + 1, o.job.inputs.end());
  options.order = o.job.output.order;
  options.restart = o.job.output.restart;
  const auto merged = merge_outputs(options, [] { return interrupt_count() == 0; });
  JobReport report;
  int exit_code = kExitOk;
  if (merged.ok()) {
    report.done = merged->num_records;
    report.failed = merged->num_failed;
    report.left = 0;
    exit_code = report.failed > 0 ? kExitSomeFailed : kExitOk;
    if (merged->was_complete) log_info(options.output + ": complete, nothing to do");
    else write_merged_metrics(o, *merged, exit_code);
  } else {
    exit_code = exit_code_for(merged.status());
    log_error(with_flag_names(merged.status().message()));
  }
  write_stderr(final_report_json(report, options.output, exit_code) + "\n");
  return exit_code;
}

}  // namespace llmb
