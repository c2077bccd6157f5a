// The part of the table of flags that says how answers are taken apart, and what ends those that loop.
#pragma once

#include "cli/options.h"

namespace CLI {
class App;
}

namespace llmb {

// As make_command_line().
void add_parts_options(CLI::App& app, Options& options);

}  // namespace llmb
