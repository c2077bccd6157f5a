// The parts of a report's page, each "" where no run has what it shows. Colour i is run i's.
#pragma once

#include <string>
#include <vector>

#include "report/page.h"

namespace llmb {

using Runs = std::vector<RunData>;

std::string draw_tiles(const RunData& run, const ReportOptions& options);
std::string draw_run_names(const Runs& runs);  // the colours' key; "" for one run
std::string draw_comparison(const Runs& runs, const ReportOptions& options);
std::string draw_facts(const Runs& runs);
std::string draw_over_time(const Runs& runs);
std::string draw_latencies(const Runs& runs);
std::string draw_lengths(const Runs& runs);
std::string draw_time_spent(const Runs& runs);
std::string draw_savings(const Runs& runs);
std::string draw_efficiency(const Runs& runs, const ReportOptions& options);
std::string draw_errors(const Runs& runs);
std::string draw_slowest(const Runs& runs);

// In units of the price, where it is known: of a million tokens in, out, and of a thousand requests. A run's cost is
// divided among tokens in and out by the time that they took.
struct RunCost {
  double input_million = 0, output_million = 0, thousand_requests = 0, whole_run = 0;
  bool is_divided = false;  // else both million prices are that of a million tokens of either kind
};
std::optional<RunCost> cost_of(const RunData& run, const ReportOptions& options);

}  // namespace llmb
