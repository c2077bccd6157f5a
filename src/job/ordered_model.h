// A model as a process finds it that follows the job's order.
#pragma once

#include <optional>

#include "job/job_ending.h"
#include "job/job_model.h"
#include "job/job_options.h"
#include "job/worker_messages.h"

namespace llmb {

// Finds device and model, and sets in the options, made of the job's command line, what the job has chosen.
std::optional<JobStop> load_ordered_model(const WorkerOrder& order, JobOptions* options, JobModel* model);

}  // namespace llmb
