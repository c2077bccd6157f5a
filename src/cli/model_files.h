// Everything of a model directory but its weights: configuration, tokenizer, chat template, sampling defaults.
#pragma once

#include <memory>

#include "base/status.h"
#include "cli/options.h"
#include "core/model_config.h"
#include "core/request.h"
#include "engine/request_preparer.h"
#include "engine/run_metrics.h"

namespace llmb {

struct ModelFiles {
  ModelConfig config;
  GenerationParams default_params;
  std::shared_ptr<const ModelContext> context;
  SloTargets slo;
};

// kInvalidArgument: a flag does not fit the model (a usage error); anything else: the model is refused.
Result<ModelFiles> load_model_files(const Options& options);

}  // namespace llmb
