// The summary of a run, for people and for programs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/energy_meter.h"
#include "job/job_ending.h"

namespace llmb {

// The limits that utilisation is measured by.
struct SummaryContext {
  MachineLimits limits;
  bool limits_were_given = false;
  std::vector<EnergyReading> energy;
};

// Given by flags, else as measured.
SummaryContext summary_context(const JobMetrics& metrics, std::optional<double> peak_flops,
                               std::optional<double> peak_bandwidth);

// As a table for people.
std::string summary_table(const JobMetrics& metrics, const SummaryContext& context);
// As one JSON line, metric names as in vLLM's bench. `extra_json_members` ("\"a\":1,…" or "") come first.
std::string summary_json(const JobMetrics& metrics, const SummaryContext& context,
                         const std::string& extra_json_members);

}  // namespace llmb
