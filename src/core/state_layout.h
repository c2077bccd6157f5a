// The memory of layers with a recurrent state: what a sequence keeps of its tokens in place of keys and values.
//
// Tokens are cut into chunks at absolute positions. A state slot holds the matrices as they were before the chunk of
// the sequence's last token, and what that chunk's tokens add to them. So a token's output is computed in one way,
// whichever step computes it, and the matrices are written once a chunk.
#pragma once

#include <cstdint>

#include "core/model_config.h"
#include "core/types.h"

namespace llmb {

// Tokens of a chunk. Results depend on it.
inline constexpr int32_t kStateChunk = 16;

struct StateLayout {
  StateConfig config;
  int32_t num_layers = 0;  // that have a state
  int32_t num_slots = 0;   // 0: the model has none

  // Sizes in one layer of a slot, in floats; parts lie behind each other in this order.
  int64_t row_size() const { return ceil_div(int64_t{config.value_dim}, 16) * 16; }  // a value's, padded
  int64_t matrices_size() const { return int64_t{config.num_value_heads} * config.key_dim * row_size(); }
  int64_t keys_size() const { return config.keys_size() * kStateChunk; }  // [head, channel, token of the chunk]
  int64_t updates_size() const {
    return config.key_dim == 0 ? 0 : config.num_value_heads * kStateChunk * row_size();
  }                                                                                      // [head, token, channel]
  int64_t decays_size() const { return int64_t{config.num_value_heads} * kStateChunk; }  // [head, token], logarithms
  int64_t conv_size() const {
    return (config.conv_width - 1) * config.conv_channels();
  }  // [position % (width - 1), channel]
  int64_t conv_offset() const { return matrices_size() + keys_size() + updates_size() + decays_size(); }
  int64_t layer_size() const { return ceil_div(conv_offset() + conv_size(), 16) * 16; }
  int64_t slot_bytes() const { return num_layers * layer_size() * int64_t{sizeof(float)}; }
};

// Slots for so many sequences that run, as many that end with a plan in flight, and as many that copies are made from.
inline StateLayout state_layout(const ModelConfig& config, int32_t max_num_seqs) {
  StateLayout layout{config.state, 0, config.has_states() ? 3 * max_num_seqs : 0};
  for (int32_t i = 0; i < config.num_hidden_layers; ++i) layout.num_layers += config.layer(i).has_state;
  return layout;
}

}  // namespace llmb
