// Lists a directory.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace llmb {

// Names of files and directories in it, sorted, without "." and "..". Where it cannot be listed for want of memory or
// descriptors it throws std::bad_alloc or std::system_error: many a caller takes an error for an empty directory.
Result<std::vector<std::string>> directory_names(const std::string& dir);

}  // namespace llmb
