// How much memory a model's weights take on a CPU.
#pragma once

#include <cstdint>

#include "core/model_config.h"
#include "core/types.h"
#include "model/weight_files.h"

namespace llmb {

// Bytes, estimated. files: null where there are none; dtype: of activations.
int64_t resident_weight_bytes(const ModelConfig& config, Quantization quantization, DType dtype,
                              const WeightFiles* files);

}  // namespace llmb
