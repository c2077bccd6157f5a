// Which models the CUDA ops can run, and with which options.
#pragma once

#include "backend/backend.h"
#include "base/status.h"
#include "core/model_config.h"

namespace llmb {

// kInvalidArgument or kUnsupported, naming the option. Before anything is read or allocated. num_slices: ranks with a
// part of each block
Status check_cuda_options(const ModelConfig& config, const LoadOptions& options, int32_t num_slices);

// kUnsupported, naming what is missing. Before anything is read or allocated.
Status check_cuda_support(const ModelConfig& config, int32_t max_model_len);

}  // namespace llmb
