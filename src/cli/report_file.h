// Writes a report's page.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "report/page.h"

namespace llmb {

// A run by its line of a metrics file; `name` tells it from others, "" where it is alone.
struct RunLine {
  std::string name, line;
};

// REQUIRES: as draw_report(). path "-": stdout; a file is replaced whole or left as it is.
Status write_page(const std::vector<RunData>& runs, std::optional<double> price_per_hour, const std::string& path);
Status write_report(const std::vector<RunLine>& runs, std::optional<double> price_per_hour, const std::string& path);

}  // namespace llmb
