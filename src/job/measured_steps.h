// How long steps of a model take on a device, kept in a file beside its packed weights for later runs and for forecasts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "backend/backend.h"
#include "base/file_ops.h"
#include "base/status.h"
#include "core/step_cost.h"
#include "job/job_options.h"

namespace llmb {

struct MeasuredSteps {
  std::string device;             // BackendInfo::device
  int64_t pool_tokens = 0;        // that the KV pool had room for
  int64_t kv_bytes_per_token = 0;
  StepCost::Curve curve;
};

// Where they lie; "": nowhere, without `weight_cache_dir`.
std::string measured_steps_path(const JobOptions& options);

// nullopt: there are none that can be read.
std::optional<MeasuredSteps> read_measured_steps(const std::string& path);
Status write_measured_steps(const std::string& path, const MeasuredSteps& steps, FileOps& ops);

MeasuredSteps measured_steps(const BackendInfo& backend, const StepCost& cost);

}  // namespace llmb
