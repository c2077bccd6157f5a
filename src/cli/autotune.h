// `--autotune`: finds the settings with which this machine computes a model's rows fastest, on rows of the user's own file.
#pragma once

#include "cli/options.h"
#include "job/workforce.h"

namespace llmb {

// Tries settings on a sample of the input, one after the other, for about a minute: prints each try to stdout and keeps the
// best (job/tuned_settings.h). Settings that were asked for stay as they are. *must_end: Job::must_end_process(). The exit
// code.
int autotune(const Options& options, const BackendFactory& make, bool* must_end);

}  // namespace llmb
