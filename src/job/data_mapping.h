// Lines of data become prompts: the options of a job as the reader of lines needs them.
#pragma once

#include "base/status.h"
#include "io/data_line.h"
#include "job/job_options.h"

namespace llmb {

// kInvalidArgument: the template does not parse; the message says where.
Result<DataMapping> make_data_mapping(const DataOptions& options);

}  // namespace llmb
