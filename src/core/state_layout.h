// The memory of layers with a recurrent state: what a sequence keeps of its tokens in place of keys and values.
//
// Tokens are cut into chunks at absolute positions. A state slot holds the matrices as they were before the chunk of
// the sequence's last token, and what that chunk's tokens add to them. So a token's output is computed in one way,
// whichever step computes it, and the matrices are written once a chunk.
//
// Drafts may turn out wrong, so they change no matrix: those that lie beyond the end of the chunk of the newest token
// known leave what they add in the slot's room for a second chunk. The next step closes the first one if they were right.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/model_config.h"
#include "core/types.h"

namespace llmb {

// Tokens of a chunk. Results depend on it.
inline constexpr int32_t kStateChunk = 16;

// Drafts of one sequence in a step, at most. They cross one border of chunks.
inline constexpr int32_t kMaxStateDrafts = 8;
static_assert(kMaxStateDrafts <= kStateChunk);

// Memory of snapshots that prefixes keep, at most, but for a few.
inline constexpr int64_t kSnapshotBytes = int64_t{1} << 30;

struct StateLayout {
  StateConfig config;
  int32_t num_layers = 0;     // that have a state
  int32_t num_slots = 0;      // 0: the model has none
  int32_t num_snapshots = 0;  // of these, that prefixes may keep
  int32_t max_drafts = 0;     // of one sequence in a step

  // Slots for so many sequences that run, as many that end with a plan in flight, as many that copies are made from, and
  // snapshots.
  void keep_snapshots(int32_t count, int32_t max_num_seqs) {
    num_snapshots = count;
    num_slots = 3 * max_num_seqs + count;
  }

  // Sizes in one layer of a slot, in floats; parts lie behind each other in this order.
  int64_t row_size() const { return ceil_div(int64_t{config.value_dim}, 16) * 16; }  // a value's, padded
  int64_t matrices_size() const { return int64_t{config.num_value_heads} * config.key_dim * row_size(); }
  int64_t keys_size() const { return config.keys_size() * kStateChunk; }  // [head, channel, token of the chunk]
  int64_t updates_size() const {
    return config.key_dim == 0 ? 0 : config.num_value_heads * kStateChunk * row_size();
  }                                                                                      // [head, token, channel]
  int64_t decays_size() const { return int64_t{config.num_value_heads} * kStateChunk; }  // [head, token], logarithms
  int64_t chunk_size() const { return keys_size() + updates_size() + decays_size(); }
  // With drafts, chunks take turns in two places.
  int32_t num_chunks() const { return max_drafts > 0 ? 2 : 1; }
  int64_t chunk_offset(int64_t position) const {
    return matrices_size() + position / kStateChunk % num_chunks() * chunk_size();
  }
  // Inputs of the convolution that are kept: what the next token needs, also if all drafts are wrong.
  int64_t conv_kept() const { return config.conv_width - 1 + max_drafts; }
  int64_t conv_size() const { return conv_kept() * config.conv_channels(); }  // [position % conv_kept(), channel]
  int64_t conv_offset() const { return matrices_size() + num_chunks() * chunk_size(); }
  int64_t layer_size() const { return ceil_div(conv_offset() + conv_size(), 16) * 16; }
  int64_t slot_bytes() const { return num_layers * layer_size() * int64_t{sizeof(float)}; }
};

// With as many snapshots as fit, within bounds.
inline StateLayout state_layout(const ModelConfig& config, int32_t max_num_seqs, int32_t max_drafts = 0,
                                int64_t snapshot_bytes = kSnapshotBytes) {
  constexpr int64_t kFewest = 4, kMost = 256;
  StateLayout layout{.config = config.state, .max_drafts = std::min(max_drafts, kMaxStateDrafts)};
  if (!config.has_states()) return layout;
  for (int32_t i = 0; i < config.num_hidden_layers; ++i) layout.num_layers += config.layer(i).has_state;
  const int64_t slot_bytes = std::max<int64_t>(layout.slot_bytes(), 1);
  layout.keep_snapshots(static_cast<int32_t>(std::clamp(snapshot_bytes / slot_bytes, kFewest, kMost)), max_num_seqs);
  return layout;
}

// The position before which tokens are in a slot's matrices, once a step has run whose rows of the sequence end before
// position `end`, the last `num_drafts` of them guesses. REQUIRES: some are none
constexpr int32_t state_border(int32_t end, int32_t num_drafts) {
  const int32_t newest = num_drafts > 0 ? end - num_drafts : end - 1;
  return newest / kStateChunk * kStateChunk;
}

}  // namespace llmb
