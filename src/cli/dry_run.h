// --dry-run: checks every line and counts tokens; computes and writes nothing.
#pragma once

#include "job/request_intake.h"

namespace llmb {

// The exit code. Bad lines are told on stderr, the first twenty of them one by one.
int dry_run(RequestIntake& intake);

}  // namespace llmb
