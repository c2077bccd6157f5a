// A line of a metrics file as the data of a report.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "report/run_data.h"

namespace llmb {

// Members that are missing or of another type are absent: lines of older versions have fewer. An error where the line
// is no JSON object with the members of a run.
Result<RunData> read_metrics_line(std::string_view line);

}  // namespace llmb
