#include "cli/sample_run.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "base/durable_file.h"
#include "base/log.h"
#include "cli/exit_code.h"
#include "cli/flag_names.h"
#include "cli/signals.h"
#include "job/job.h"

namespace llmb {

namespace {

class Unseen final : public JobObserver {
 public:
  void on_loaded(const JobOptions&, const ModelFiles&, const BackendInfo&) override {}
  void on_forecast(const Forecast&, const BackendInfo&) override {}
  void on_progress(const JobProgress&) override {}
  void on_computed() override {}
};

}  // namespace

SampleRun run_sample(JobOptions options, const LineSample& sample, const ScratchFolder& folder, const BackendFactory& make,
                     bool* must_end) {
  options.inputs = sample.files;
  options.output.path = folder.file("out.jsonl");
  options.output.no_metrics = options.output.restart = true;
  options.output.metrics = "";
  Unseen unseen;
  Job job(options, {make, interrupt_count(), unseen});
  SampleRun run = {job.run(), {}};
  *must_end = job.must_end_process();
  std::ifstream in(options.output.path);
  for (std::string line; std::getline(in, line);) run.records.push_back(std::move(line));
  std::sort(run.records.begin(), run.records.end());
  return run;
}

int report_failed_run(const std::string& name, const JobEnding& ending) {
  if (!ending.message.empty()) log_error(name + ": " + with_flag_names(ending.message));
  else log_error(name + ": the run did not end");
  return exit_code_of(ending.end);
}

Status print_text(const std::string& text) { return write_fully(real_file_ops(), STDOUT_FILENO, text, "standard output"); }

int64_t num_different(const SampleRun& a, const SampleRun& b) {
  int64_t count = a.records.size() == b.records.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.records.size(), b.records.size()); ++i) count += a.records[i] != b.records[i];
  return count;
}

}  // namespace llmb
