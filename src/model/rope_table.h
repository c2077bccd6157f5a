// The cosines and sines of rotary position embeddings (RoPE; Su et al. 2021, arXiv:2104.09864), for every position.
#pragma once

#include <cstdint>
#include <vector>

#include "core/model_config.h"

namespace llmb {

struct RopeTable {
  std::vector<float> cos;  // [max_position, head_dim / 2]
  std::vector<float> sin;  // [max_position, head_dim / 2]
};

// Angles are computed in fp64. Scaling: linear (positions divided by factor), llama3 (Llama 3.1: slow frequencies
// divided by factor, fast ones kept, between them a blend).
RopeTable make_rope_table(const ModelConfig& config, int32_t max_position);

}  // namespace llmb
