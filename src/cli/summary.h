// The summary of a run, for people and for programs.
#pragma once

#include <cstdint>
#include <string>

#include "backend/backend.h"
#include "engine/step_metrics.h"
#include "job/request_metrics.h"

namespace llmb {

// Measurements of a run.
struct RunMetrics {
  RequestMetrics requests;
  StepMetrics steps;
  int64_t num_left = 0;  // requests that were taken in and given up
};

// The summary needs these besides the metrics.
struct RunContext {
  double wall_ms = 0;  // from the first read to the last record
  BackendInfo backend;
  MachineLimits limits;
  bool limits_were_given = false;
};

// As a table for people.
std::string summary_table(const RunMetrics& metrics, const RunContext& context);
// As one JSON line, metric names as in vLLM's bench. `extra_json_members` ("\"a\":1,…" or "") come first.
std::string summary_json(const RunMetrics& metrics, const RunContext& context, const std::string& extra_json_members);

}  // namespace llmb
