// The work list of paged_attention: which thread block reads which keys and values for which query rows, balanced so
// that blocks finish together. Host code without a device; a schedule serves all layers of a step that have its window.
//
// A row is one query head of one token; rows of a sequence's new tokens that share a KV head are numbered
// token * group + head in group. A unit is up to max_rows of them, of one chunk, over all positions that they see; an
// item is a unit or a piece of one, over a range of positions that starts at a multiple of the kernel's tile.
//
// 1. Items cover each (row, visible position) exactly once. Items of CTA c are [cta_start[c], cta_start[c + 1]).
// 2. Sizes stay within attention_limits().
// 3. Deterministic schedules cut no unit into pieces.
// 4. Pieces of a unit are consecutive in `partial`, in order of positions, num_rows rows each.
// 5. The first piece of a unit goes on from the states of its sequence's shared positions, where there are any. In
//    layers that take none of these states it computes those positions too.
#pragma once

#include <cstdint>
#include <vector>

#include "core/types.h"
#include "kernels/cuda/scaled_kv.h"

namespace llmb::cuda {

// Shared by all steps.
struct AttentionShape {
  DType dtype = DType::kBF16;
  int32_t num_heads = 0;  // a multiple of num_kv_heads
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_size = 16;
  int32_t window = 0;  // positions a token sees, up to the last of them; 0: all
  // Positions behind its own that a token sees; the last of them is the last that it sees. Of sequences all of whose
  // tokens are new.
  int32_t later = 0;
  int32_t chunk = 0;  // > 0: in place of a window, positions from the last multiple of this on, up to its own
  bool deterministic = false;
  bool hopper = false;  // the device has compute capability 9.0
  KvCode kv_code = KvCode::kNone;  // of the bytes that keys and values are (scaled_kv.h); kNone: they are of dtype
  // > 0: no values are stored: they are the last so many channels of the keys (latents).
  int32_t latent_dim = 0;
  // > 0: a position's value, of so many channels, stands behind its key in a row of one pool (expanded latents).
  int32_t joined_value_dim = 0;
  int64_t block_stride = 0;  // elements from a block to the next in the pools; 0: they are dense

  static constexpr int32_t kAllLater = 1 << 28;

  int32_t group() const { return num_heads / num_kv_heads; }
  int32_t value_dim() const { return latent_dim > 0 ? latent_dim : joined_value_dim > 0 ? joined_value_dim : head_dim; }
  int32_t row_dim() const { return head_dim + joined_value_dim; }  // of a position in a pool
  int64_t dense_stride() const { return int64_t{num_kv_heads} * block_size * row_dim(); }
};

// The first positions of a sequence, whose attention the launch over shared prefixes computes. It leaves an online
// softmax's state for each row and piece of these positions: query head h of the sequence's token t has state
// first + piece * stride + t * num_heads + h.
struct SharedStates {
  int32_t num_positions = 0;  // a multiple of the kernel's tile; fewer than any of the new tokens sees
  int32_t first = 0, num_pieces = 0, stride = 0;
};

// The new tokens of a step, as in StepPlan. The last new token of sequence s is at position context_len[s] - 1.
struct AttentionBatch {
  int32_t num_seqs = 0;
  const int32_t* query_start = nullptr;  // [num_seqs + 1]
  const int32_t* context_len = nullptr;  // [num_seqs]
  const int32_t* block_start = nullptr;  // [num_seqs]
  const SharedStates* shared = nullptr;  // [num_seqs]; null: no positions are shared
  const uint8_t* is_left_out = nullptr;  // [num_seqs]  whether another list has the sequence; null: none is
};

struct alignas(16) AttentionItem {
  int32_t query_start;     // row of qkv and out where the sequence begins
  int32_t first_position;  // position of that token
  int32_t block_start;     // of the sequence's table, in blocks
  int32_t kv_head;
  int32_t row_begin, num_rows;
  int32_t kv_begin, kv_end;  // positions
  int32_t partial;           // row of the partial results where this piece's begin; -1: the item is a whole unit
  int32_t first_partial;     // where those of the unit's first piece begin
  int32_t num_pieces;
  int32_t split;        // counts the units in pieces
  SharedStates shared;  // no positions: the item begins with a state of its own
};

// How the kernels cut work up.
struct AttentionTiling {
  static constexpr int32_t kSmallRows = 16;   // decode-like: the warps of a block share out the positions
  static constexpr int32_t kTileRows = 64;    // prefill-like: the warps share out the rows
  static constexpr int32_t kWgmmaTile = 128;  // positions
  bool scalar;                                // no tensor cores: float, or sizes that they cannot load
  int32_t padded_dim;                         // of the kernel that serves head_dim; scalar: head_dim
  int32_t max_rows;
  int32_t kv_tile;  // positions
  // Blocks of the grid for each SM. With `wgmma` the last third of the grid is a launch of its own, for units of more
  // than kTileRows rows, by Hopper's warpgroup products over tiles of kWgmmaTile positions.
  int32_t ctas_per_sm;
  bool wgmma = false;
  bool wide = false;  // heads of more than 256 channels, or latents (paged_attention_wide.h)
  bool only_wgmma = false;  // all units go to Hopper's kernel, which has the whole grid

  int32_t first_wgmma_cta(int32_t num_ctas) const { return only_wgmma ? 0 : wgmma ? num_ctas / 3 * 2 : num_ctas; }
};
AttentionTiling attention_tiling(const AttentionShape& shape);

// The most that any step needs.
struct AttentionLimits {
  int64_t max_items = 0;
  int64_t max_partial_rows = 0;  // [., head_dim] floats and [., 2] floats
  int64_t max_splits = 0;
};
AttentionLimits attention_limits(const AttentionShape& shape, int32_t num_ctas, int32_t max_num_seqs,
                                 int32_t max_num_tokens);

// Grows to the largest step's need, then allocates no more.
struct AttentionSchedule {
  std::vector<AttentionItem> items;
  std::vector<int32_t> cta_start;  // [num_ctas + 1]
  int32_t num_partial_rows = 0;
  int32_t num_splits = 0;
  std::vector<int64_t> cta_cost;  // [num_ctas]  what the balance goes by; 16 a tile of a decode-like item

  // Scratch.
  struct Unit {
    int32_t seq, row_begin, num_rows, kv_begin, kv_end;
    int32_t tile_cost, item_cost, num_tiles, kv_tile;
    bool wgmma;
    int64_t cost(int64_t tiles) const { return item_cost + tiles * tile_cost; }
  };
  struct Piece {
    int32_t unit, kv_head, tile_begin, tile_end, cta;
    int32_t partial, first_partial, num_pieces, split;
  };
  std::vector<Unit> units;  // each stands for one of every KV head
  std::vector<Piece> pieces;
  std::vector<int32_t> order, next_cta, bucket;
  std::vector<int64_t> by_cost;
};

// num_ctas is ctas_per_sm times the SMs, whatever the step. Sequences without new tokens are
// allowed. REQUIRES: the batch is as a valid StepPlan's.
void schedule_attention(const AttentionBatch& batch, const AttentionShape& shape, int32_t num_ctas,
                        AttentionSchedule* schedule);

}  // namespace llmb::cuda
