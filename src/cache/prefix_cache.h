// A tree of blocks that says which tokens each holds, and behind which others, so that a prefix is computed once and
// then found again. Ids and tokens only, never memory. References are counted by the BlockAllocator.
//
// A block's contents depend on its tokens and on the chain of blocks before it, to which the adapter belongs. Blocks
// are found by comparing tokens, never by a hash alone, so no two chains can be mixed. The blocks behind one block form
// a search tree (a treap: Seidel and Aragon, "Randomized Search Trees", 1996) in lexicographic order of their tokens.
// The longest common beginning with all of them lies on the path of one search.
//
// A full block may have others behind it. One that is not full is a leaf; its owner goes on writing behind the tokens
// known here, and others copy it.
//
// A block that nobody references is idle. Idle blocks are taken back in the order in which they became idle. A chain
// is given back last block first, so that is leaves before their parents, the oldest first.
//
// Where layers are in several groups (core/layer_groups.h), the tree is of the first group's blocks, whose layers see
// everything. Beside each stand the other groups' blocks of the same tokens, as far as they are there: blocks are given
// back when windows are past them. They become idle and are taken back like all others, or when theirs in the first
// group is.
//
// Not thread-safe. find() and insert() take O(log(blocks behind one block)) expected time, all else but
// check_integrity() constant time. Memory: 44 bytes and block_size tokens for each id up to the largest that was ever
// inserted.
//
// Invariants (check_integrity):
//  1. Blocks behind the same block differ: of adapter and tokens, no two are equal.
//  2. A block with others behind it is full. A block that is not idle has no idle block before it.
//  3. Every idle block is in the order of idleness once, those behind it before it.
//  4. num_ready <= num_tokens; they differ only for blocks that the plan being made writes.
//  5. A block stands in the tree, or beside one block of it, or is not here.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "core/types.h"

namespace llmb {

inline constexpr BlockId kNoBlock = -1;

class PrefixCache {
 public:
  explicit PrefixCache(int32_t block_size, int32_t num_groups = 1);

  // Blocks behind one block, compared with tokens that are wanted there.
  struct Match {
    BlockId block = kNoBlock;        // begins with most of them
    int32_t num_tokens = 0;          // that it begins with; block_size: all of a full block
    BlockId ready_block = kNoBlock;  // of those that lie in memory before the plan being made, the most found
    int32_t num_ready_tokens = 0;
  };
  // Looks behind `parent` (kNoBlock: at the beginning of a sequence). REQUIRES: at most block_size tokens
  Match find(BlockId parent, int32_t adapter, std::span<const TokenId> tokens) const;

  // `block` holds or will hold `tokens` behind `parent`; the first `num_ready` of them lie in memory before the plan
  // being made. Returns who has these tokens in the cache: `block`, or another that was there first. A block that is
  // not full may be inserted again with more tokens. REQUIRES: 1 <= tokens.size() <= block_size; `block` is referenced,
  // and so is `parent`, which is full, cached and of the same adapter
  BlockId insert(BlockId parent, int32_t adapter, std::span<const TokenId> tokens, int32_t num_ready, BlockId block);
  // `block` of another layer group than the first holds what `first` holds. Returns who stands there: `block`, or another
  // that was there before, or kNoBlock where `block` stands elsewhere. REQUIRES: `first` is in the tree; neither is idle; `block` is as ready as `first`
  BlockId put_beside(BlockId first, int32_t group, BlockId block);
  // The block of `group` that holds what `first`, of the tree, holds; kNoBlock: none. Of the first group it is `first`.
  BlockId beside(BlockId first, int32_t group) const {
    return group == 0 ? first : beside_[int64_t{first} * (num_groups_ - 1) + group - 1];
  }
  // The plan being made is complete: what it writes lies in memory for the next one.
  void make_ready();

  bool holds(BlockId block) const {
    return block < static_cast<int64_t>(nodes_.size()) && (nodes_[block].num_tokens > 0 || nodes_[block].first != kNoBlock);
  }
  bool is_idle(BlockId block) const { return holds(block) && nodes_[block].is_idle; }
  int32_t num_idle() const { return num_idle_; }
  int64_t num_evictions() const { return num_evictions_; }

  // For the allocator. REQUIRES: holds(block)
  void become_idle(BlockId block);  // the last reference is gone. REQUIRES: not idle
  void reuse(BlockId block);        // the first reference is there. REQUIRES: idle
  // Forgets the idle block that is least useful and appends it, and blocks that stood beside it and are idle, to
  // `evicted`. REQUIRES: num_idle() > 0
  void evict(std::vector<BlockId>* evicted);

  Status check_integrity() const;

 private:
  struct Node {
    int32_t num_tokens = 0;  // 0: not in the cache
    int32_t num_ready = 0;
    int32_t adapter = -1;
    BlockId parent = kNoBlock;
    BlockId child = kNoBlock;                    // root of the search tree of the blocks behind this one
    BlockId left = kNoBlock, right = kNoBlock;   // in the search tree of the blocks beside this one
    BlockId older = kNoBlock, newer = kNoBlock;  // in the order of idleness
    BlockId first = kNoBlock;                    // beside which this block stands
    bool is_idle = false;
  };

  std::span<const TokenId> tokens_of(BlockId block) const {
    return {tokens_.data() + int64_t{block} * block_size_, static_cast<size_t>(nodes_[block].num_tokens)};
  }
  BlockId* root_behind(BlockId parent) { return parent == kNoBlock ? &root_ : &nodes_[parent].child; }
  bool goes_before(BlockId a, BlockId b) const;
  void link(BlockId block);
  void unlink(BlockId block);
  Status check_behind(BlockId parent, std::vector<uint8_t>* seen) const;
  Status check_idle(std::vector<uint8_t>* seen) const;
  Status check_beside() const;
  void make_room_for(BlockId block);
  void leave_side(BlockId block);

  const int32_t block_size_, num_groups_;
  std::vector<Node> nodes_;      // [largest id inserted + 1]
  std::vector<TokenId> tokens_;  // [nodes, block_size]
  std::vector<BlockId> beside_;  // [nodes, num_groups - 1]
  std::vector<BlockId> fresh_;   // written by the plan being made
  BlockId root_ = kNoBlock;      // of the search tree of first blocks
  BlockId oldest_ = kNoBlock, newest_ = kNoBlock;
  int32_t num_idle_ = 0;
  int64_t num_evictions_ = 0;
};

}  // namespace llmb
