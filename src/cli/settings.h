// What flags, the model's files and built-in defaults add up to, and how it is shown at the start of a run.
#pragma once

#include <string>

#include "backend/backend.h"
#include "base/status.h"
#include "cli/options.h"
#include "core/model_config.h"
#include "core/request.h"
#include "job/model_files.h"
#include "model/config_loader.h"

namespace llmb {

// Flags over generation_config.json (max_new_tokens: max_tokens of all forms of lines) over built-in defaults. Error:
// --logit-bias or --stop-token-ids out of range.
Result<GenerationParams> default_generation_params(const Options& options, const GenerationConfig& generation,
                                                   const ModelConfig& model);

// The model's context, or --max-model-len. Error: the flag asks for more than the model has.
Result<int32_t> effective_max_model_len(const Options& options, const ModelConfig& model);

// Some lines for stderr: defaults differ between tools, so a run says what it uses.
std::string describe_model(const Options& options, const ModelFiles& model, const BackendInfo& backend);
// How answers are sampled, and what ends them. REQUIRES: load_model_context().
std::string describe_defaults(const Options& options, const ModelFiles& model);

}  // namespace llmb
