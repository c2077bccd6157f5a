// The KV blocks of one sequence, in order of its tokens: a table for each layer group (core/layer_groups.h). All have
// the same length. Of a group with a window, blocks that no later row sees are given back: kNoBlock stands for them, at
// the table's beginning.
//
// Not thread-safe. Invariants:
//  1. A slot that holds a token of the sequence stays where it is, unless its block is shared and copied, or another
//     block that holds the same takes its place, or no later row sees it.
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
  // windows: of the groups, as in LayerGroups
  explicit BlockTable(int32_t block_size, const std::vector<int32_t>& windows = {0});

  // Appends blocks until `num_tokens` tokens have slots in every group, or changes nothing and returns false.
  [[nodiscard]] bool grow_to(int64_t num_tokens, BlockAllocator* allocator);
  // Gives back what `num_tokens` tokens do not need.
  void shrink_to(int64_t num_tokens, BlockAllocator* allocator);
  // Gives back what no row at `position` or behind it sees.
  void give_back_unseen(int32_t position, BlockAllocator* allocator);
  void release_all(BlockAllocator* allocator);

  // Begins with blocks of the prefix cache. kNoBlock, at the beginning: no row of this sequence sees it. REQUIRES: the
  // group's table is empty; in the end all are as long
  void share(int32_t group, std::span<const BlockId> blocks, BlockAllocator* allocator);
  // Begins with what a row at `position` sees of another table. REQUIRES: empty; other.has_seen_from(position)
  void share_seen(const BlockTable& other, int32_t position, BlockAllocator* allocator);
  // Whether all is there that a row at `position` or behind it sees.
  bool has_seen_from(int32_t position) const;
  // Puts a block that holds the same tokens in the place of block `index`, which it gives back.
  void replace(int32_t group, int32_t index, BlockId same, BlockAllocator* allocator);
  // Whether the block that holds `position` is there and in another table as well.
  bool is_shared(int32_t group, int64_t position, const BlockAllocator& allocator) const;
  int32_t num_unshared(const BlockAllocator& allocator) const;  // blocks that no other table holds
  struct Copy {
    int32_t group;
    BlockId from, to;
  };
  // Puts a block of its own in the place of a shared one. The reference to `from` passes to the caller, who keeps it
  // until the copy is planned. REQUIRES: is_shared(group, position), a free block
  Copy copy_on_write(int32_t group, int64_t position, BlockAllocator* allocator);

  int32_t num_groups() const { return static_cast<int32_t>(groups_.size()); }
  const std::vector<BlockId>& blocks(int32_t group = 0) const { return groups_[group].blocks; }
  // Block `index` of each group, kNoBlock where it is given back, in `scratch`.
  std::span<const BlockId> blocks_at(int32_t index, std::vector<BlockId>* scratch) const;
  int32_t num_blocks() const { return static_cast<int32_t>(groups_[0].blocks.size()); }  // of each table
  int32_t num_live(int32_t group) const { return num_blocks() - groups_[group].num_given_back; }
  int64_t capacity_tokens() const { return int64_t{num_blocks()} * block_size_; }

 private:
  struct Group {
    int32_t window;
    std::vector<BlockId> blocks;
    int32_t num_given_back = 0;
  };
  int32_t first_seen_block(const Group& group, int32_t position) const;

  int32_t block_size_;
  std::vector<Group> groups_;
};

}  // namespace llmb
