// Everything of a model directory but its weights: configuration, tokenizer, chat template, sampling defaults.
#pragma once

#include <memory>

#include "base/status.h"
#include "cli/options.h"
#include "core/model_config.h"
#include "core/request.h"
#include "engine/request_preparer.h"
#include "job/request_metrics.h"
#include "model/config_loader.h"

namespace llmb {

struct ModelFiles {
  ModelConfig config;
  GenerationConfig generation;
  GenerationParams default_params;
  int32_t max_model_len = 0;
  SloTargets slo;
  std::shared_ptr<const ModelContext> context;  // null before load_model_context()
};

// Puts directories in place of the names of models. The same errors as load_model_files().
Status find_model_dirs(Options* options);

// All but the context. kInvalidArgument: a flag does not fit the model (a usage error); anything else: the model is
// refused.
Result<ModelFiles> load_model_files(const Options& options);

// Adds the tokenizer and the chat template, which may be large; the same errors.
Status load_model_context(const Options& options, ModelFiles* files);

}  // namespace llmb
