// Lines of `inspect` about a model's config.
#pragma once

#include <string>

#include "core/model_config.h"

namespace llmb {

// The tasks that the model's files say how to do with texts, as flags: "--task embed", "--task classify" or both; "": none.
std::string tasks_of_texts(const std::string& path, const ModelConfig& config);

void print_config(const std::string& path, const ModelConfig& config);

}  // namespace llmb
