// Progress on stderr: a bar on a terminal, a plain line every ten seconds otherwise. It goes by tokens, not by rows:
// forty equal rows all end at once.
#pragma once

#include <optional>
#include <string>

#include "cli/options.h"
#include "job/job_progress.h"

namespace llmb {

// The share of the work that is done, in [0, 1); nullopt where it is not known how much there is, as while a pipe is read.
std::optional<double> fraction_done(const JobProgress& p);

// Not thread-safe. Cheap to call after every step: it writes a few times a second at most.
class Progress {
 public:
  explicit Progress(ProgressKind kind);  // kAuto looks at stderr

  void update(const JobProgress& p);
  // Writes a line now, whatever the kind.
  void print_status(const JobProgress& p);
  // Says that a line failed in a new way; the bar goes on behind it.
  void print_error(const ErrorCount& error);
  // Clears the bar, so that what follows starts on a clean line.
  void finish();

 private:
  std::string describe(const JobProgress& p);

  const ProgressKind kind_;
  double next_ms_;
  double fraction_ = 0;  // shown last: more rows may turn up, but a bar does not go back
  bool drawn_ = false;
};

}  // namespace llmb
