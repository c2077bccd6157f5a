// Shows at the start of a run what flags, the model's files and built-in defaults add up to.
#pragma once

#include <string>

#include "backend/backend.h"
#include "job/job_options.h"
#include "job/model_files.h"

namespace llmb {

const char* batching_name(BatchingMode mode);
const char* schedule_name(Schedule schedule);

// Blocks that a long run takes from a pool whose memory is taken as it is used: those of max_num_seqs sequences of
// request_tokens tokens, and those that the prefix cache keeps; at most the pool.
int64_t expected_kv_blocks(const SchedulerConfig& scheduler, const BackendInfo& backend, int32_t request_tokens);
// Some lines for stderr: defaults differ between tools, so a run says what it uses.
std::string describe_model(const JobOptions& options, const ModelFiles& model, const BackendInfo& backend);
// How answers are sampled, and what ends them. REQUIRES: load_model_context().
std::string describe_defaults(const JobOptions& options, const ModelFiles& model);

}  // namespace llmb
