// One run of the program, from options to exit code.
#pragma once

#include "cli/options.h"

namespace llmb {

int run(const Options& options);

}  // namespace llmb
