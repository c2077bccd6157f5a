// The members of the metrics line that a report draws, beyond the summary's figures.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "cli/energy_meter.h"
#include "job/job_ending.h"
#include "job/job_options.h"

namespace llmb {

// settings and machine: what ran, as names and texts.
void add_run_members(const JobOptions& options, const BackendInfo& backend, nlohmann::ordered_json* line);
// histograms, requests, time, timeline.
void add_figure_members(const JobMetrics& metrics, nlohmann::ordered_json* line);
// energy: for each counter its joules, or why it is absent.
void add_energy_member(const std::vector<EnergyReading>& readings, nlohmann::ordered_json* line);

}  // namespace llmb
