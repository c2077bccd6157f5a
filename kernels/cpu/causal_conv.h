// causal_conv: each channel's short convolution over a sequence's newest tokens, then SiLU where that is wanted (the
// depthwise convolution of Mamba, Gated DeltaNet, LFM2). What the next tokens need of a sequence's inputs is kept in
// its state slot. A token's result depends on its sequence alone, not on how steps cut it.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"

namespace llmb::cpu {

// The sequences of a step with their states in one layer. Drafts, at the end of a sequence's rows, may turn out wrong.
struct StateEntries {
  int32_t count;
  const int32_t* query_start;     // [count + 1]  rows of each
  const int32_t* first_position;  // [count]  of its first row
  const int32_t* num_drafts;      // [count]
  const int32_t* borders;         // [count]  tokens before it are in the matrices of the state; state_border()
  float* const* states;           // [count]  core/state_layout.h; what is in them at position 0 does not matter
};

void causal_conv(const float* x,       // [rows, channels]
                 const float* weight,  // [width, channels]  the newest token's last
                 const float* bias,    // [channels]  nullptr: none
                 bool has_silu, int64_t width, int64_t channels, const StateEntries& entries,
                 int64_t conv_offset,  // floats of a state before the inputs that are kept
                 int64_t num_kept,     // inputs: width - 1, and one for each draft that there may be
                 float* out,           // [rows, channels]
                 ThreadPool& pool);

}  // namespace llmb::cpu
