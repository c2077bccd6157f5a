// Blocks of a draft model's pool that lie inside blocks of the pool of the model it drafts for, so that both take from the
// same memory.
//
// A backend's pool is so many arrays of blocks, one behind the other. A draft model's pool that has per_block blocks in
// each lent one and takes num_arrays arrays of the lending pool for each of its own is laid out as any pool of
// num_own() blocks, over the same memory: array a of it is the lending pool's arrays a * num_arrays to (a + 1) *
// num_arrays - 1.
#pragma once

#include <cstdint>
#include <vector>

#include "core/types.h"

namespace llmb {

struct LentBlocks {
  int32_t num_arrays = 0;  // of the lending pool, for each of the draft model's; 0: nothing is lent
  int32_t per_block = 0;   // blocks of the draft model's in a lent block, in each of these arrays
  int32_t block_size = 0;  // tokens of such a block
  int32_t num_blocks = 0;  // that follow each other in an array of the lending pool

  explicit operator bool() const { return num_arrays > 0; }
  int32_t num_tokens() const { return num_arrays * per_block * block_size; }  // of the draft model's, in a lent block
  int64_t num_own() const { return int64_t{num_arrays} * per_block * num_blocks; }
  // Appends the draft model's blocks in a lent one, in an order that is the same for all.
  void append(BlockId lent, std::vector<BlockId>* own) const {
    for (int32_t array = 0; array < num_arrays; ++array)
      for (int32_t i = 0; i < per_block; ++i) own->push_back((array * num_blocks + lent) * per_block + i);
  }
};

// Tokens of a block that a draft model's may have, the better of two that hold as many first.
inline constexpr int32_t kLentBlockSizes[] = {16, 32, 64, 128, 256, 8};

// A pool's memory, with blocks of so many tokens.
struct PoolArrays {
  int64_t count = 0, block_bytes = 0;  // block_bytes: of a block in an array
  int32_t block_size = 0;
};

// How the draft model's blocks lie in the lending pool's, but for num_blocks. may_pad: they may lie further apart than
// they are long, at multiples of 4 bytes. Nothing is lent where a block does not fit into an array's, or where an array
// is too few. REQUIRES: both have arrays and bytes
inline LentBlocks fit_blocks(const PoolArrays& lending, const PoolArrays& draft, bool may_pad) {
  LentBlocks lent;
  lent.num_arrays = static_cast<int32_t>(lending.count / draft.count);
  lent.per_block = static_cast<int32_t>(lending.block_bytes / draft.block_bytes);
  if (may_pad)
    while (lent.per_block > 0 && lending.block_bytes % (int64_t{4} * lent.per_block) != 0) --lent.per_block;
  else if (lent.per_block > 0 && lending.block_bytes % draft.block_bytes != 0) lent.per_block = 0;
  if (lent.num_arrays == 0 || lent.per_block == 0) return {};
  lent.block_size = draft.block_size;
  return lent;
}

}  // namespace llmb
