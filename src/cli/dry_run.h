// --dry-run: checks every line and counts tokens; computes and writes nothing.
#pragma once

#include "job/job_options.h"

namespace llmb {

// The exit code. is_quiet: without the settings. Bad lines are told on stderr, the first twenty of them one by one.
int dry_run(JobOptions options, bool is_quiet);

}  // namespace llmb
