// Puts the records of an output into the order of their input lines.
#pragma once

#include <optional>
#include <string>

#include "base/durable_file.h"
#include "base/file_ops.h"
#include "base/status.h"

namespace llmb {

// Replaces the file atomically and durably where its records are not in order; else changes nothing. Reads it once,
// twice more where it must be sorted, in bounded memory (place_sorter.h). `temporary`: a name beside it, free
// to be overwritten. The file that replaced it, if one did. Errors as scan_records(); kDataLoss also for a torn tail.
Result<std::optional<FileIdentity>> sort_records(const std::string& path, const std::string& temporary,
                                                 FileOps& ops = real_file_ops());

}  // namespace llmb
