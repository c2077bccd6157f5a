// Files copied into memory of our own, so that parsed text stays as it was read, whatever happens to the file.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <string>

#include "base/descriptor.h"
#include "base/status.h"

namespace llmb {

// A regular file, to be read. A pipe under this name is refused, not waited for. Errors as open_error().
Result<Descriptor> open_regular_file(const std::string& path, struct stat* st);

// Whether there is a file or a directory of this name that can be looked at.
bool file_exists(const std::string& path);

// All of a file of at most max_bytes. kDataLoss: it is larger, or was cut short meanwhile; else as open_error().
Result<std::string> read_whole_file(const std::string& path, size_t max_bytes);

// For files whose readers set no limit of their own: nothing that is to be in memory as text is larger.
inline constexpr size_t kMaxTextFileBytes = size_t{1} << 30;

}  // namespace llmb
