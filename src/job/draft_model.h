// Who guesses tokens for the job's model: a smaller one, heads, a layer behind it, or its own first layers.
#pragma once

#include <string>

#include "backend/backend.h"
#include "base/status.h"
#include "core/lent_blocks.h"
#include "core/model_config.h"
#include "job/job_model.h"

namespace llmb {

struct DraftModel {
  ModelConfig config;
  LoadOptions load;   // but for the pool, which has room for as many tokens as the target's
  LentBlocks lent;    // or lies in that one
  bool is_on_gpu = false;
};

// Puts the draft model's keys and values into the target's pool where they fit in there, else beside it: then the memory
// for the target's is that of both. On a GPU the target also leaves room for the draft model's weights. is_alone: the
// target is not one of several ranks. target_load: all but the pool's size is chosen
void place_draft_model(const ModelConfig& target, bool is_alone, DraftModel* draft, LoadOptions* target_load);

// `name` as of a model. target_load: of the job's model. An error where it is not there, has another tokenizer than the
// job's model, or the device computes nothing.
Result<DraftModel> find_draft_model(const std::string& name, const JobModel& target, const LoadOptions& target_load);

// The directory of heads that fit the job's model. `name` as of a model.
Result<std::string> find_medusa_heads(const std::string& name, const JobModel& target);

// The directory of a layer of EAGLE's that fits the job's model, which `model` describes, and then says so. `name` as of
// a model.
Result<std::string> find_eagle_layer(const std::string& name, const JobModel& target, ModelConfig* model);

// Whether the job's model can draft by its first `num_layers` layers.
Status check_drafting_layers(int32_t num_layers, const JobModel& target);
// Whether a layer behind its last one can draft: such as `load` tells, with mtp.is_used in `config`.
Status check_mtp(const ModelConfig& config, const LoadOptions& load, const JobModel& target);

}  // namespace llmb
