// The KV blocks of one sequence, in order of its tokens.
//
// Not thread-safe. Invariants:
//  1. A slot that holds a token of the sequence stays where it is, unless its block is shared and copied, or another
//     block that holds the same takes its place.
//  2. Every block holds one reference of this table in the allocator that gave it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/block_allocator.h"
#include "core/types.h"

namespace llmb {

class BlockTable {
 public:
  explicit BlockTable(int32_t block_size);

  // Appends blocks until `num_tokens` tokens have slots, or changes nothing and returns false.
  [[nodiscard]] bool grow_to(int64_t num_tokens, BlockAllocator* allocator);
  // Gives back what `num_tokens` tokens do not need.
  void shrink_to(int64_t num_tokens, BlockAllocator* allocator);
  void release_all(BlockAllocator* allocator);

  // Begins with blocks of another table or of the prefix cache. REQUIRES: empty
  void share(std::span<const BlockId> blocks, BlockAllocator* allocator);
  // Puts a block that holds the same tokens in the place of block `index`, which it gives back.
  void replace(int32_t index, BlockId same, BlockAllocator* allocator);
  // Whether the block that holds `position` is there and in another table as well.
  bool is_shared(int64_t position, const BlockAllocator& allocator) const;
  int32_t num_unshared(const BlockAllocator& allocator) const;  // blocks that no other table holds
  struct Copy {
    BlockId from, to;
  };
  // Puts a block of its own in the place of a shared one. The reference to `from` passes to the caller, who keeps it
  // until the copy is planned. REQUIRES: is_shared(position), a free block
  Copy copy_on_write(int64_t position, BlockAllocator* allocator);

  const std::vector<BlockId>& blocks() const { return blocks_; }
  int32_t num_blocks() const { return static_cast<int32_t>(blocks_.size()); }
  int64_t capacity_tokens() const { return int64_t{num_blocks()} * block_size_; }

 private:
  int32_t block_size_;
  std::vector<BlockId> blocks_;
};

}  // namespace llmb
