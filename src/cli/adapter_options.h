// The part of the table of flags that names adapters.
#pragma once

#include "cli/options.h"

namespace CLI {
class App;
}

namespace llmb {

// As make_command_line().
void add_adapter_options(CLI::App& app, Options& options);

}  // namespace llmb
