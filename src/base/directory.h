// Lists a directory.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace llmb {

// Names of files and directories in it, sorted, without "." and "..". Throws std::bad_alloc
// or std::system_error where memory or descriptors run out, as many callers take an error for an empty directory.
Result<std::vector<std::string>> directory_names(const std::string& dir);

}  // namespace llmb
