// Layers' attention by the size of their heads, and by chunks of positions: all layers of a kind have one work list in
// each step.
#pragma once

#include <cstdint>
#include <vector>

#include "core/model_config.h"
#include "kernels/cuda/paged_attention_schedule.h"

namespace llmb {

struct AttentionKind {
  cuda::AttentionShape shape;  // without a window, which serves every layer
  int32_t num_ctas = 0;        // of the kernels' grid
};

struct AttentionKinds {
  std::vector<AttentionKind> kinds;  // at least one
  std::vector<int32_t> of_layers;    // [num_used_layers()]  0 for layers without attention

  const AttentionKind& of(int32_t layer) const { return kinds[of_layers[layer]]; }
};

// The kinds of layers that attend, in order of their first one. `like` has all that they have in common, heads aside.
// Positions are below max_position: chunks of as many cut nothing.
AttentionKinds attention_kinds(const ModelConfig& config, const cuda::AttentionShape& like, int32_t num_sms,
                               int32_t max_position);

}  // namespace llmb
