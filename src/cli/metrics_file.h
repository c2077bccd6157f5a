// The metrics file: one JSON line a run, appended, so that a cron job's history is one file.
#pragma once

#include <string>

#include "base/file_ops.h"
#include "base/status.h"
#include "job/job_options.h"

namespace llmb {

// Beside an output: out.metrics.jsonl for out.jsonl; "" for streams and devices.
std::string metrics_beside_path(const std::string& output);

// Members that say which run it was: date, version, model, machine, settings, inputs, exit code. Without braces.
std::string metrics_identity(const JobOptions& options, const BackendInfo& backend, int exit_code);

// Starts a line of its own, also where the file ends with a torn one. After an error the file is as it was, where it
// can be cut. Does not wait for the reader of a pipe.
Status append_metrics(const std::string& path, const std::string& line, FileOps& ops = real_file_ops());

}  // namespace llmb
