// Flags by which several runs share the rows of one input.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/options.h"

namespace llmb {

void add_shard_options(CLI::App& app, Options& o);

}  // namespace llmb
