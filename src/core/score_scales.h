// The factors that attention multiplies scores by, layer by layer.
#pragma once

#include <cstdint>
#include <vector>

#include "core/model_config.h"

namespace llmb {

// For the layers of a rank, whose config is `own`: layer 0 of it is the model's first_layer, which scores may be scaled by.
inline std::vector<float> score_scales(const ModelConfig& whole, const ModelConfig& own, int64_t first_layer) {
  std::vector<float> scales;
  for (int32_t i = 0; i < own.num_used_layers(); ++i)
    scales.push_back(static_cast<float>(whole.score_scale(static_cast<int32_t>(first_layer) + i)));
  return scales;
}

}  // namespace llmb
