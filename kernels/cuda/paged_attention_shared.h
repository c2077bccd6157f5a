// The work list of attention's launch over shared prefixes: the rows of several sequences whose tables begin with the
// same blocks go through these blocks together, as one product of many query rows (Hydragen, Juravsky et al. 2024;
// cascade attention in FlashInfer, Ye et al. 2025), and leave states from which each sequence goes on by itself. Host
// code without a device.
//
// Layers with windows may use the same list: each row sees what its window reaches.
//
// 1. A sequence takes part in one prefix at most: prefixes that do not enclose each other are chosen, so that the
//    fewest positions are read. Only sequences of few rows take part, where reading is what takes time; and only where
//    all of it saves more than a launch costs, in layers with the window of the list's shape.
// 2. An item is some rows of a prefix, over a piece of its positions that begins at a multiple of the kernel's tile. It
//    writes the states of these rows and this piece; nothing else does.
// 3. Deterministic schedules cut no prefix into pieces.
// 4. Sizes stay within shared_attention_limits().
// 5. A prefix is read by way of the table of the sequence that looks back furthest. Nothing is read that no row sees.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cuda/paged_attention_schedule.h"
#include "kernels/cuda/tuning.h"

namespace llmb::cuda {

// The blocks of the launch, of the step's num_ctas.
int32_t shared_ctas(const AttentionTiling& tiling, int32_t num_ctas, bool uses_wgmma);

// Whether there is such a launch for attention of this shape.
bool can_share_positions(const AttentionShape& shape);

// Whether a sequence of so many new tokens can take part.
bool shares_positions(const AttentionShape& shape, int32_t num_tokens);

// Positions from 0 on whose blocks are the same in two sequences or more. Those that can take part have all their new
// tokens behind them, wherever the step is resolved.
struct SharedPositions {
  int32_t num_positions = 0;
  int32_t seq_begin = 0, seq_end = 0;  // into the list of sequences
};

// As in StepPlan: prefixes enclose each other or are apart, and one that encloses others comes before them.
struct SharedAttentionBatch {
  std::span<const SharedPositions> prefixes;
  std::span<const int32_t> seqs;
  // [num_seqs]  the least that the position of the sequence's first new token can be; null: as in the batch
  const int32_t* least_position = nullptr;
  // The launch is worth it where it saves so many tiles of reads for each block of the grid.
  int32_t least_gain_tiles = tuning::kSharedLaunchTiles;
  int32_t state_positions = tuning::kStatePositions;  // and, for each of its rows, so many positions
};

struct SharedAttentionLimits {
  int64_t max_tokens = 0;
  int64_t max_items = 0;
  int64_t max_states = 0;  // [., head_dim] floats and [., kStateStats] floats
};
SharedAttentionLimits shared_attention_limits(const AttentionShape& shape, int32_t num_ctas, int32_t max_num_seqs,
                                              int32_t max_num_tokens);

// An item's query_start is its prefix's first of `tokens`, its shared.first where the states of its piece begin; none of
// its rows is before first_position + the token of row_begin. Pieces of units are not used.
struct SharedAttentionSchedule {
  std::vector<int32_t> tokens;
  std::vector<AttentionItem> items;  // empty: nothing is worth sharing
  std::vector<int32_t> cta_start;    // [shared_ctas() + 1]
  bool uses_wgmma = false;           // where the tiling has it: some items have more than kTileRows rows
  std::vector<SharedStates> states;  // [num_seqs]

  // Scratch.
  struct Chosen {
    SharedPositions prefix;
    int32_t first_token, num_tokens, num_units, num_pieces;
    int32_t widest_seq;  // that looks back furthest
  };
  std::vector<int64_t> gain, best;  // [prefixes]
  std::vector<int32_t> parent, cta;
  std::vector<char> is_covered;
  std::vector<std::pair<int64_t, int32_t>> loads;
  std::vector<Chosen> chosen;
};

// REQUIRES: can_share_positions(shape); max_tokens as in the limits.
void schedule_shared_attention(const AttentionBatch& batch, const SharedAttentionBatch& shared,
                               const AttentionShape& shape, int32_t num_ctas, int64_t max_tokens,
                               SharedAttentionSchedule* schedule);

// Whether the launch is also worth it in layers with a smaller window than the list was made for: shape.window.
bool gains_by_sharing(const AttentionBatch& batch, const SharedAttentionBatch& shared, const AttentionShape& shape,
                      int32_t num_ctas, SharedAttentionSchedule* schedule);

}  // namespace llmb::cuda
