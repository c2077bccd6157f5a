// The KV blocks of one sequence, in order: token position -> slot.
//
// Not thread-safe. Invariants:
//  1. Append-only until release_all(): a slot, once named, stays where it is.
//  2. Every block holds one reference of this table in the allocator that gave it.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/block_allocator.h"
#include "core/types.h"

namespace llmb {

class BlockTable {
 public:
  explicit BlockTable(int32_t block_size);

  // Appends blocks until `num_tokens` tokens have slots, or changes nothing and returns false.
  [[nodiscard]] bool grow_to(int64_t num_tokens, BlockAllocator* allocator);
  void release_all(BlockAllocator* allocator);

  const std::vector<BlockId>& blocks() const { return blocks_; }
  int32_t num_blocks() const { return static_cast<int32_t>(blocks_.size()); }
  int64_t capacity_tokens() const { return int64_t{num_blocks()} * block_size_; }
  // REQUIRES: 0 <= position < capacity_tokens()
  int32_t slot(int64_t position) const {
    return blocks_[position / block_size_] * block_size_ + static_cast<int32_t>(position % block_size_);
  }

 private:
  int32_t block_size_;
  std::vector<BlockId> blocks_;
};

}  // namespace llmb
