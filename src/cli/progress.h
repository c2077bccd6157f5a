// Progress on stderr: a bar on a terminal, a plain line every ten seconds otherwise.
#pragma once

#include <cstdint>
#include <optional>

#include "cli/options.h"
#include "job/job_progress.h"

namespace llmb {

// Not thread-safe. Cheap to call after every step: it writes a few times a second at most.
class Progress {
 public:
  // kAuto looks at stderr. num_lines: lines of this run, where known; else they are estimated from total_bytes, which
  // is absent for pipes.
  Progress(ProgressKind kind, std::optional<int64_t> num_lines, std::optional<int64_t> total_bytes);

  void update(const JobProgress& p);
  // Writes a line now, whatever the kind.
  void print_status(const JobProgress& p);
  // Clears the bar, so that what follows starts on a clean line.
  void finish();

 private:
  std::optional<double> estimate_lines(const JobProgress& p) const;

  const ProgressKind kind_;
  const std::optional<int64_t> num_lines_, total_bytes_;
  double next_ms_;
  bool drawn_ = false;
};

}  // namespace llmb
