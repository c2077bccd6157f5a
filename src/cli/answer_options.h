// The part of the table of flags that says how answers are drawn, where they end, and which form they have.
#pragma once

#include "cli/options.h"

namespace CLI {
class App;
}

namespace llmb {

// As make_command_line(), which calls both.
void add_sampling_options(CLI::App& app, Options& o);
void add_form_options(CLI::App& app, Options& o);

}  // namespace llmb
