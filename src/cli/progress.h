// Progress on stderr: a bar on a terminal, a plain line every ten seconds otherwise.
#pragma once

#include <cstdint>
#include <optional>

#include "cli/options.h"
#include "engine/engine.h"

namespace llmb {

// Not thread-safe. Cheap to call after every step: it writes a few times a second at most.
class Progress {
 public:
  explicit Progress(ProgressKind kind);  // kAuto looks at stderr

  // bytes_read / total_bytes place the reader in its inputs; together with the lines seen they give the estimate of
  // what is left. total_bytes is absent for pipes.
  void update(const EngineProgress& p, int64_t bytes_read, std::optional<int64_t> total_bytes);
  // Writes a line now, whatever the kind.
  void print_status(const EngineProgress& p, int64_t bytes_read, std::optional<int64_t> total_bytes);
  // Clears the bar, so that what follows starts on a clean line.
  void finish();

 private:
  const ProgressKind kind_;
  double next_ms_;
  bool drawn_ = false;
};

}  // namespace llmb
