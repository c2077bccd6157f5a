// What the flags mean for the parts of a run: the backend, the scheduler, the intake.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "cli/options.h"
#include "engine/engine.h"
#include "job/model_files.h"
#include "job/request_intake.h"

namespace llmb {

LoadOptions load_options(const Options& options, int32_t max_model_len);

SchedulerConfig scheduler_config(const Options& options, const BackendInfo& backend, int32_t max_model_len);

// Given by flags, else measured.
MachineLimits machine_limits(const Options& options, Backend& backend);

// `completed` (null: none) outlives it.
std::unique_ptr<RequestIntake> make_intake(const Options& options, const ModelFiles& model,
                                           std::unique_ptr<LineReader> reader, std::shared_ptr<const Clock> clock,
                                           const CompletedLines* completed);

}  // namespace llmb
