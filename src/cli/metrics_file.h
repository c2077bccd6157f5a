// The metrics file: one JSON line a run, appended, so that a cron job's history is one file.
#pragma once

#include <string>

#include "base/status.h"
#include "cli/options.h"

namespace llmb {

// Members that say which run it was: date, version, model, device, batching, inputs, exit code. Without braces.
std::string metrics_identity(const Options& options, int exit_code);

Status append_metrics(const std::string& path, const std::string& line);

}  // namespace llmb
