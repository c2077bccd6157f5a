// The table of all flags. --help prints it, parse_command_line() reads by it, and tools/describe_options.cpp makes the
// manual page and the shells' completions from it.
#pragma once

#include <memory>

#include "cli/options.h"

namespace CLI {
class App;
}

namespace llmb {

// Parsing writes to `options`, which outlives the result. CLI/CLI.hpp is needed to use it.
std::unique_ptr<CLI::App> make_command_line(Options& options);

}  // namespace llmb
