// Shows at the start of a run what flags, the model's files and built-in defaults add up to.
#pragma once

#include <string>

#include "backend/backend.h"
#include "job/job_options.h"
#include "job/model_files.h"

namespace llmb {

const char* batching_name(BatchingMode mode);
const char* schedule_name(Schedule schedule);

// Some lines for stderr: defaults differ between tools, so a run says what it uses.
std::string describe_model(const JobOptions& options, const ModelFiles& model, const BackendInfo& backend);
// How answers are sampled, and what ends them. REQUIRES: load_model_context().
std::string describe_defaults(const JobOptions& options, const ModelFiles& model);

// Who guesses tokens; "none": nobody.
std::string describe_drafters(const SpeculationOptions& speculation);

}  // namespace llmb
