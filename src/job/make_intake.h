// The intake of a job: its inputs, parsed with its defaults for its model.
#pragma once

#include <memory>

#include "base/clock.h"
#include "job/job_options.h"
#include "job/model_files.h"
#include "job/request_intake.h"
#include "job/row_reader.h"

namespace llmb {

// REQUIRES: load_model_context(). `completed` (null: none) outlives it.
// REQUIRES: make_data_mapping(options.data) succeeds.
std::unique_ptr<RequestIntake> make_intake(const JobOptions& options, const ModelFiles& model,
                                           std::unique_ptr<LineReader> reader, std::shared_ptr<const Clock> clock,
                                           const CompletedLines* completed);

// Understands lines as such an intake does.
std::unique_ptr<RequestParser> make_request_parser(const JobOptions& options, const ModelFiles& model);

// Reads rows of the same inputs again, with an intake's results.
std::unique_ptr<RowReader> make_row_reader(const JobOptions& options, const ModelFiles& model);

}  // namespace llmb
