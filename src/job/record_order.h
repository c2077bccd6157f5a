// Puts the records of an output into the order of their input lines.
#pragma once

#include <string>

#include "base/file_ops.h"
#include "base/status.h"

namespace llmb {

// Replaces the file atomically and durably where its records are not in order; else changes nothing. Reads it once,
// twice more where it must be sorted, and then takes 24 bytes of memory a record. `temporary`: a name beside it, free
// to be overwritten. Errors as scan_records(); kDataLoss also for a torn tail.
Status sort_records(const std::string& path, const std::string& temporary, FileOps& ops = real_file_ops());

}  // namespace llmb
