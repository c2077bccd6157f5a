// One run of the program, from the command line to the exit code.
#pragma once

#include "backend/make_backend.h"
#include "job/workforce.h"

namespace llmb {

// Prints its report. Where a call of the device hangs it ends the process instead of returning: nobody can end that
// thread. Throws nothing.
int run_command_line(int argc, const char* const* argv, const BackendFactory& make = make_backend);

}  // namespace llmb
