// Which prompts of a step have their latents expanded to keys and values of every head (kernels/cuda/expand_latents.h):
// those for which this is less work than attention over the latents. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/model_config.h"

namespace llmb {

struct PromptRows {
  int32_t num_rows = 0;
  int32_t context_len = 0;  // with them
};

// Multiply-adds of a head, each kind weighed by how much slower it is than attention over expanded keys and values.
struct PromptWork {
  double absorbed = 0, expanded = 0;
};
PromptWork prompt_work(const LatentConfig& latent, const PromptRows& prompt);

// The prompts that a step expands; none: num_heads is 0.
struct ExpandedSize {
  int32_t num_seqs = 0;
  int32_t num_rows = 0;
  int32_t num_blocks = 0;  // of kExpandedBlock positions of one sequence
  int32_t num_heads = 0;   // at a time: a divisor of the model's
};

// In the order of the step's entries, as far as the pool holds all heads of a position in tuning::kMaxHeadGroups turns.
// REQUIRES: candidates have rows
ExpandedSize choose_expanded(const LatentConfig& latent, int32_t num_heads,
                             int64_t pool_blocks,  // of one head
                             std::span<const PromptRows> candidates,
                             std::vector<uint8_t>* is_expanded);  // [candidates]  out

}  // namespace llmb
