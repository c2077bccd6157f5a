// The files that a run writes beside its results: error records and metrics. None of them may be a file that the run
// reads or keeps its results in.
#pragma once

#include "base/status.h"
#include "job/job_options.h"
#include "job/output_sink.h"

namespace llmb {

// Changes nothing, so that a run that is refused later leaves an earlier run's files as they are. kInvalidArgument: one
// is a directory, an input, part of the output, or both are the same; kIoError: the error file cannot be written.
Status check_side_files(const JobOptions& options, const OutputTarget& output);

}  // namespace llmb
