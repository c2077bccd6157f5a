// What is in a directory.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace llmb {

// Names of files and directories in it, sorted, without "." and "..". Throws std::bad_alloc, which
// std::filesystem::directory_iterator, increased without exceptions, makes the end of the process.
Result<std::vector<std::string>> directory_names(const std::string& dir);

}  // namespace llmb
