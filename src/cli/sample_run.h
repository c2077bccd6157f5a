// Runs of a sample that leave nothing behind but figures and records.
#pragma once

#include <string>
#include <vector>

#include "cli/compare_sample.h"
#include "job/job_ending.h"
#include "job/worker.h"

namespace llmb {

struct SampleRun {
  JobEnding ending;
  std::vector<std::string> records;  // sorted, without metrics

  bool is_complete() const {
    return ending.metrics && (ending.end == JobEnd::kComplete || ending.end == JobEnd::kCompleteWithErrors);
  }
};

// options: but for inputs and output, which are the sample's and the folder's. *must_end: Job::must_end_process().
SampleRun run_sample(JobOptions options, const LineSample& sample, const ScratchFolder& folder, const BackendFactory& make,
                     bool* must_end);
// Tells of a run that did not end, by its name. The exit code.
int report_failed_run(const std::string& name, const JobEnding& ending);
// To stdout.
Status print_text(const std::string& text);
// How many records of two runs differ.
int64_t num_different(const SampleRun& a, const SampleRun& b);

}  // namespace llmb
