// llm-batch inspect MODEL|ADAPTER…
#pragma once

#include "cli/options.h"

namespace llmb {

// The exit code; everything is said.
int inspect_command(const Options& options);

}  // namespace llmb
