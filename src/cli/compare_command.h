// `llm-batch compare prompts.jsonl`
#pragma once

#include "cli/options.h"
#include "job/workforce.h"

namespace llmb {

// Runs the first lines of the inputs in each batching mode, without and with sharing of prefixes and planning, one run
// after the other; prints a table on stdout and draws the report that `options` asks for. Says whether all answers are
// the same bytes. Returns the exit code. The process must end where `must_end` becomes true: a thread hangs in a call.
int compare_command(const Options& options, const BackendFactory& make, bool* must_end);

}  // namespace llmb
