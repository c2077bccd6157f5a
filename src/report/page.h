// A report of one run, or of several side by side: one HTML file that needs nothing else.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/run_data.h"

namespace llmb {

inline constexpr size_t kMaxReportRuns = 7;  // as many as there are colours

struct ReportOptions {
  std::optional<double> price_per_hour;  // of the machine
};

// REQUIRES: 1 to kMaxReportRuns runs. At most 1 MB where texts are as long as readers leave them.
std::string draw_report(const std::vector<RunData>& runs, const ReportOptions& options);

}  // namespace llmb
