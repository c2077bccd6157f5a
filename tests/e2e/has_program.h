// Whether a program that a test would call is installed.
#pragma once

#include <string>

#include "tests/support/process.h"

namespace llmb::test {

inline bool has_program(const std::string& name) { return run_shell("command -v " + name).exit_code == 0; }

}  // namespace llmb::test
