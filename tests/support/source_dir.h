// Where this checkout and its build are. In a file of its own: with the paths in their commands, no two checkouts could
// share compiled tests.
#pragma once

#include <string>

namespace llmb::test {

// The top of the checkout; the environment's LLMB_SOURCE_DIR, for a program that was built on another machine.
std::string source_dir();

// The build tree: the program lies there, tools in tools/.
std::string binary_dir();

}  // namespace llmb::test
