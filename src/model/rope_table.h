// The cosines and sines of rotary position embeddings (RoPE; Su et al. 2021, arXiv:2104.09864), for every position.
#pragma once

#include <cstdint>
#include <vector>

#include "core/model_config.h"

namespace llmb {

struct RopeTable {
  std::vector<float> cos;  // [max_position, rotary_dim / 2]
  std::vector<float> sin;  // [max_position, rotary_dim / 2]
};

// Angles are computed in fp64. Scaling, with L = original_max_position_embeddings:
//   linear    positions divided by factor
//   llama3    slow frequencies divided by factor, fast ones kept, between them a blend (Llama 3.1)
//   yarn      the same with a ramp over channels, and an attention factor (Peng et al. 2023, arXiv:2309.00071)
//   dynamic   the position p >= L is turned as if the sequence ended there: theta grows with p (NTK-aware scaling)
//   longrope  frequencies divided by short_factor where max_position <= L, else by long_factor, for the whole run
//             (Ding et al. 2024, arXiv:2402.13753)
RopeTable make_rope_table(const RopeConfig& rope, int32_t rotary_dim, int32_t max_position);

}  // namespace llmb
