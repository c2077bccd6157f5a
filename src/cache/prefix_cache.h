// A tree of what was computed: which tokens, behind which others, and which blocks hold them, so that a prefix is
// computed once and then found again. Ids and tokens only, never memory. References are counted by the BlockAllocator.
//
// A node stands for up to block_size tokens behind those of its parents, and holds for each layer group
// (core/layer_groups.h) the block with their keys and values, or nothing: blocks are given back when windows are past
// them, and taken for others when nobody references them. So a node without blocks may lead to some that have them.
//
// Contents depend on a node's tokens and on the chain of nodes before it, to which the adapter belongs. Nodes are found
// by comparing tokens, never by a hash alone, so no two chains can be mixed. The nodes behind one node form
// a search tree (a treap: Seidel and Aragon, "Randomized Search Trees", 1996) in lexicographic order of their tokens.
// The longest common beginning with all of them lies on the path of one search.
//
// A full node may have others behind it. One that is not full is a leaf; its blocks' owner goes on writing behind the
// tokens known here, and others copy them.
//
// A block that stands in a node and that nobody references is idle. Idle blocks are taken back in the order in which
// they became idle. A chain is given back last block first, so that is leaves before their parents, the oldest first. A
// node stays while it holds a block, has nodes behind it, or is held.
//
// A sequence that waits may want nodes. Where a block of a wanted node is evicted, it moves to the host's pool while
// that has room, and from there back into another block when a sequence asks for it; that of a node that is not full into
// a block of the sequence's own, as others would copy it.
//
// Not thread-safe. find() and insert() take O(log(nodes behind one node)) expected time, all else but
// want(), unwant() and check_integrity() constant time. Memory: 40 bytes and block_size tokens for each node, 16 bytes for each id up to the
// largest block that was ever inserted.
//
// Invariants (check_integrity):
//  1. Nodes behind the same node differ: of adapter and tokens, no two are equal.
//  2. A node with others behind it is full. In a layer group that sees everything, a block stands behind another one,
//     which is not idle unless it is.
//  3. Every idle block is in the order of idleness once; where its group sees everything, those behind it before it.
//  4. num_ready <= num_tokens; they differ only for nodes whose blocks the plan being made writes.
//  5. A block stands in one node at most, in one layer group. Every node is in use.
//  6. Free blocks of the host's pool and those that hold what a node stands for, which is wanted, are all. A node with one
//     gets no tokens more: it holds those that there were.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "core/prompt_blocks.h"
#include "core/step_plan.h"
#include "core/types.h"

namespace llmb {

inline constexpr BlockId kNoBlock = -1;

using NodeId = int32_t;
inline constexpr NodeId kNoNode = -1;

class PrefixCache {
 public:
  // windows: of the layer groups, as in LayerGroups
  explicit PrefixCache(int32_t block_size, std::vector<int32_t> windows = {0}, int32_t num_host_blocks = 0);

  // Nodes behind one node, compared with tokens that are wanted there.
  struct Match {
    NodeId node = kNoNode;        // begins with most of them
    int32_t num_tokens = 0;       // that it begins with; block_size: all of a full node
    NodeId ready_node = kNoNode;  // of those that lie in memory before the plan being made, the most found
    int32_t num_ready_tokens = 0;
  };
  // Looks behind `parent` (kNoNode: at the beginning of a sequence). REQUIRES: at most block_size tokens
  Match find(NodeId parent, int32_t adapter, std::span<const TokenId> tokens) const;

  // `blocks`, one of each layer group or kNoBlock, hold or will hold `tokens` behind `parent`; the first `num_ready` of
  // them lie in memory before the plan being made. Returns the node with these tokens. Where it is new the blocks stand
  // in it. Where their own node was not full it gets the tokens that are new. A full node that was there gets those for
  // which it has none. REQUIRES: 1 <= tokens.size() <= block_size; the blocks are referenced; `parent` is full, held and of
  // the same adapter; where there is no block at all the node is full and the caller holds it next
  NodeId insert(NodeId parent, int32_t adapter, std::span<const TokenId> tokens, int32_t num_ready,
                std::span<const BlockId> blocks);
  // The block of `group` that holds what the node stands for, or kNoBlock.
  BlockId block(NodeId node, int32_t group) const { return blocks_[int64_t{node} * num_groups() + group]; }
  NodeId parent(NodeId node) const { return nodes_[node].parent; }
  // Tells a node from others that have had its id.
  uint32_t serial(NodeId node) const { return nodes_[node].serial; }
  // The node stays until it is let go as often. kNoNode: nothing
  void hold(NodeId node);
  void let_go(NodeId node);

  // A sequence wants to go on behind `num_tokens` tokens, the last of which are those that `last` begins with: what the
  // row there sees, and what the one behind the last whole block does. `last` is held until it is let go by unwant(),
  // which takes the same.
  void want(NodeId last, int32_t num_tokens);
  void unwant(NodeId last, int32_t num_tokens);
  // A sequence wants to go on behind `tokens`, whole blocks that were computed elsewhere: as want(), of the node that is
  // returned. `to_fill` gets the blocks of the host's pool that will hold what is not here, by the time of the next
  // plan. kNoNode: the host's pool may lack the room, or there is no whole block
  NodeId want_computed(int32_t adapter, std::span<const TokenId> tokens, std::vector<HostPlace>* to_fill);
  void keep_evicted(bool is_kept) { keeps_evicted_ = is_kept; }  // in the host's pool; at first not
  bool keeps_evicted() const { return keeps_evicted_ && num_host_blocks_ > 0; }
  // The block of the host's pool that holds what the node stands for, or kNoBlock.
  BlockId host_block(NodeId node, int32_t group) const { return kept_.empty() ? kNoBlock : kept(node, group).host; }
  // `block` gets in the plan being made what host_block(node, group) holds. REQUIRES: the node is full and has no block there
  void put_back(NodeId node, int32_t group, BlockId block);
  // Whether a sequence wants back what evict() would forget next. REQUIRES: num_idle() > 0
  bool is_oldest_wanted() const;
  // Whether evictions since take_swaps_out() have moved blocks to the host, from where they still are.
  bool has_swaps_out() const { return !swaps_out_.empty(); }
  // Appends the blocks that evictions have moved to the host since the last call.
  void take_swaps_out(std::vector<BlockCopy>* swaps);
  int32_t num_free_host_blocks() const { return static_cast<int32_t>(free_host_.size() + left_host_.size()); }

  // The plan being made is complete: what it writes lies in memory for the next one.
  void make_ready();

  bool holds(BlockId block) const { return is_known(block) && places_[block].node != kNoNode; }
  bool is_idle(BlockId block) const { return is_known(block) && places_[block].is_idle; }
  int32_t num_idle() const { return num_idle_; }
  int32_t num_nodes() const { return static_cast<int32_t>(nodes_.size() - free_nodes_.size()); }
  int64_t num_evictions() const { return num_evictions_; }

  // For the allocator. REQUIRES: holds(block)
  void become_idle(BlockId block);  // the last reference is gone. REQUIRES: not idle
  void reuse(BlockId block);        // the first reference is there. REQUIRES: idle
  // Forgets the idle block that is least useful. REQUIRES: num_idle() > 0
  BlockId evict();

  Status check_integrity() const;

 private:
  struct Node {
    int32_t num_tokens = 0;  // 0: not in use
    int32_t num_ready = 0;
    int32_t adapter = -1;
    uint32_t serial = 0;
    NodeId parent = kNoNode;
    NodeId child = kNoNode;                   // root of the search tree of the nodes behind this one
    NodeId left = kNoNode, right = kNoNode;   // in the search tree of the nodes beside this one
    int32_t num_uses = 0;                     // blocks, nodes behind it, holders
    int32_t num_holders = 0;
  };
  struct Place {
    NodeId node = kNoNode;                       // in which the block stands
    BlockId older = kNoBlock, newer = kNoBlock;  // in the order of idleness
    bool is_idle = false;
  };

  struct Kept {
    BlockId host = kNoBlock;
    int32_t num_wanted = 0;  // by so many sequences
  };

  Kept& kept(NodeId node, int32_t group) { return kept_[int64_t{node} * num_groups() + group]; }
  const Kept& kept(NodeId node, int32_t group) const { return kept_[int64_t{node} * num_groups() + group]; }
  void keep(BlockId block);
  template <class Change>
  void change_wanted(NodeId last, int32_t num_tokens, const Change& change);
  int32_t num_groups() const { return static_cast<int32_t>(windows_.size()); }
  bool is_known(BlockId block) const { return block >= 0 && block < static_cast<int64_t>(places_.size()); }
  std::span<const TokenId> tokens_of(NodeId node) const {
    return {tokens_.data() + int64_t{node} * block_size_, static_cast<size_t>(nodes_[node].num_tokens)};
  }
  NodeId* root_behind(NodeId parent) { return parent == kNoNode ? &root_ : &nodes_[parent].child; }
  static bool goes_above(NodeId a, NodeId b);  // in a search tree
  bool goes_before(NodeId a, NodeId b) const;
  void link(NodeId node);
  void unlink(NodeId node);
  NodeId new_node(NodeId parent, int32_t adapter);
  NodeId unfilled_node_of(std::span<const BlockId> blocks) const;
  bool is_on_host(NodeId node) const;
  void put(NodeId node, int32_t num_ready, std::span<const BlockId> blocks);
  void leave(BlockId block);
  void drop_use(NodeId node);
  Status check_behind(NodeId parent, std::vector<uint8_t>* seen) const;
  Status check_blocks(NodeId node) const;
  Status check_uses() const;
  Status check_idle() const;
  Status check_host() const;

  const int32_t block_size_;
  const std::vector<int32_t> windows_;
  const int32_t num_host_blocks_;
  bool keeps_evicted_ = false;
  std::vector<Node> nodes_;         // [most nodes at one time]
  std::vector<TokenId> tokens_;     // [nodes, block_size]
  std::vector<BlockId> blocks_;     // [nodes, num_groups]
  std::vector<Kept> kept_;          // [nodes, num_groups], or empty: nothing is ever wanted
  std::vector<NodeId> free_nodes_;  // a stack
  std::vector<Place> places_;       // [largest block inserted + 1]
  std::vector<NodeId> fresh_;       // written by the plan being made
  std::vector<BlockId> free_host_;  // a stack
  std::vector<BlockId> left_host_;  // which the plan being made may still read
  std::vector<BlockCopy> swaps_out_;
  NodeId root_ = kNoNode;           // of the search tree of first nodes
  BlockId oldest_ = kNoBlock, newest_ = kNoBlock;
  int32_t num_idle_ = 0;
  uint32_t num_made_ = 0;  // nodes
  int64_t num_evictions_ = 0;
};

}  // namespace llmb
