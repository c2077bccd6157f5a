// One run of the program, from the command line to the exit code.
#pragma once

#include "backend/make_backend.h"
#include "job/worker.h"

namespace llmb {

// Prints its report. Does not return, but ends the process, where a call of the device hangs: nobody can end its
// thread. Throws nothing.
int run_command_line(int argc, const char* const* argv, const BackendFactory& make = make_backend);

}  // namespace llmb
