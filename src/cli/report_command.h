// `llm-batch report METRICS|OUTPUT…`
#pragma once

#include "cli/options.h"

namespace llmb {

// A file of metrics lines gives a run for each line, an output one run with the metrics beside it. Returns the exit code;
// errors are printed.
int report_command(const Options& options);

}  // namespace llmb
