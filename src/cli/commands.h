// The table of commands: what --help, the manual page and the completions say of them.
#pragma once

#include <string>
#include <vector>

#include "cli/options.h"

namespace llmb {

// Commands beside the plain call. They are named by the first argument: a file of that name is ./report.
struct CommandText {
  Command command;
  std::string name, synopsis, description;
  std::vector<std::string> options;  // that it reads, without dashes; empty: all
  std::vector<std::string> refused;  // options that it does not read, where it reads all others
};
const std::vector<CommandText>& command_texts();
// Null: the argument names no command.
const CommandText* command_named(const std::string& argument);
// As lines of --help.
std::string command_synopses();

}  // namespace llmb
