// --dry-run: checks every line, counts tokens and forecasts the run; computes and writes nothing.
#pragma once

#include "cli/options.h"

namespace llmb {

// The exit code. Bad lines are told on stderr, the first twenty of them one by one.
int dry_run(const Options& options);

}  // namespace llmb
