// Progress on stderr: a bar on a terminal, a plain line every ten seconds otherwise.
#pragma once

#include "cli/options.h"
#include "job/job_progress.h"

namespace llmb {

// Not thread-safe. Cheap to call after every step: it writes a few times a second at most.
class Progress {
 public:
  explicit Progress(ProgressKind kind);  // kAuto looks at stderr

  void update(const JobProgress& p);
  // Writes a line now, whatever the kind.
  void print_status(const JobProgress& p);
  // Clears the bar, so that what follows starts on a clean line.
  void finish();

 private:
  const ProgressKind kind_;
  double next_ms_;
  bool drawn_ = false;
};

}  // namespace llmb
