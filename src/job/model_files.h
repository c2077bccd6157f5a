// Everything of a model directory but its weights: configuration, tokenizer, chat template, sampling defaults.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/status.h"
#include "core/model_config.h"
#include "core/request.h"
#include "engine/request_preparer.h"
#include "job/job_options.h"
#include "model/config_loader.h"

namespace llmb {

class AdapterLibrary;

struct ModelFiles {
  ModelConfig config;
  GenerationConfig generation;
  GenerationParams default_params;
  std::optional<Pooling> pooling;  // of a run that embeds
  std::string text_prompt;         // of a run that embeds: it stands in front of each text
  std::map<std::string, std::string> named_prompts;  // of config_sentence_transformers.json, by name
  AnswerFormats formats;  // by the options, else by the text of the chat template
  int32_t max_model_len = 0;
  std::shared_ptr<AdapterLibrary> adapters;     // null: none, or before load_model_context()
  std::shared_ptr<const ModelContext> context;  // null before load_model_context()
};

// Values of the vectors that a run with these files makes of texts.
int32_t max_dimensions(const ModelFiles& files);

// Puts directories in place of the names of models. The same errors as load_model_files(). needs_weights: false for
// devices that compute no model.
Status find_model_dirs(ModelSource* source, bool needs_weights);

// All but the context. kInvalidArgument: an option does not fit the model; anything else: the model is refused.
Result<ModelFiles> load_model_files(const JobOptions& options);

// Adds the tokenizer and the chat template, which may be large; the same errors.
Status load_model_context(const ModelSource& source, ModelFiles* files);

}  // namespace llmb
