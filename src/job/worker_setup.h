// A worker's options, made of a job's: the same for a worker in the job's process and for one in another.
#pragma once

#include <optional>

#include "job/job_ending.h"
#include "job/job_model.h"
#include "job/job_options.h"
#include "job/worker.h"

namespace llmb {

// Refuses what a model with recurrent states cannot have: trees of drafts, drafts by its first layers, swapped blocks. Its
// states get room for drafts where there are some.
Status follow_states(const ModelConfig& config, JobOptions* options);

// Reads what speculation needs. The end of the job where an option does not fit. REQUIRES: load_model_context()
std::optional<JobStop> set_up_worker(const JobOptions& options, const JobModel& model, WorkerOptions* worker);

}  // namespace llmb
