// llm-batch merge OUT SHARD…
#pragma once

#include "cli/options.h"

namespace llmb {

// The exit code; everything is said.
int merge_command(const Options& options);

}  // namespace llmb
