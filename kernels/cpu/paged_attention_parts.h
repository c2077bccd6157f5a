// paged_attention (paged_attention.h) where each of several ranks has the keys and values of some positions. A rank
// attends from all rows to those that it has. For a row and a segment of positions that gives a state (the largest
// score, the sum of weights, the weighted sum of values), which goes to whoever wants the row's result and is merged
// there in the order of segments. So a row's bits are those of paged_attention over all positions, whoever has them.
//
// Positions are dealt in turn: slices of kv.block_size of them, whole segments, the first to rank 0. Ranks meet as often
// as their states fill a message: for each row and head, value_dim + 2 floats a segment.
#pragma once

#include <cstdint>

#include "base/collectives.h"
#include "base/thread_pool.h"
#include "kernels/cpu/kv_cache.h"
#include "kernels/cpu/paged_attention.h"

namespace llmb::cpu {

// The rank that has a position.
constexpr int64_t owner_of_position(int64_t position, int64_t slice, int64_t num_ranks) {
  return position / slice % num_ranks;
}

// All ranks make the call with the same batch and queries. An item of a block table stands for a slice; those of other
// ranks' slices are not read. REQUIRES: kv.block_size a multiple of 256; own rows, if any, are rows of the batch, or
// come before its first or behind its last one; no shared prefixes; a message holds the states of a row over a segment.
void paged_attention_parts(const float* q,    // [num_tokens, q_stride]  of all rows, rotated, at the start of each
                           int64_t q_stride,  // floats from one token's q to the next
                           float* out,        // [num_own, num_heads * kv.value_dim()]
                           int64_t first_own, int64_t num_own,  // rows whose result is wanted here
                           const AttentionBatch& batch, const AttentionParams& params, const KvCacheView& kv,
                           Collectives& ranks, ThreadPool& pool);

}  // namespace llmb::cpu
