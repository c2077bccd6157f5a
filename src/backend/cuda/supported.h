// Which models the CUDA ops can run.
#pragma once

#include "base/status.h"
#include "core/model_config.h"

namespace llmb {

// kUnsupported, naming what is missing. Before anything is read or allocated.
Status check_cuda_support(const ModelConfig& config, int32_t max_model_len);

}  // namespace llmb
