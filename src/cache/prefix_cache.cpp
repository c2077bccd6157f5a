#include "cache/prefix_cache.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "core/layer_groups.h"

namespace llmb {

namespace {

// Decides the shape of the search trees: ids handed out in order must not give lists.
uint32_t priority(NodeId node) {
  uint32_t x = static_cast<uint32_t>(node) * 0x9E3779B1u;
  x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
  return x ^ (x >> 13);
}

int32_t common_beginning(std::span<const TokenId> a, std::span<const TokenId> b) {
  return static_cast<int32_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace

bool PrefixCache::goes_above(NodeId a, NodeId b) {
  const uint32_t pa = priority(a), pb = priority(b);
  return pa != pb ? pa > pb : a < b;
}

PrefixCache::PrefixCache(int32_t block_size, std::vector<int32_t> windows, int32_t num_host_blocks)
    : block_size_(block_size), windows_(std::move(windows)), num_host_blocks_(num_host_blocks) {
  LLMB_CHECK(block_size >= 1 && num_groups() >= 1 && num_host_blocks >= 0);
  for (BlockId block = num_host_blocks - 1; block >= 0; --block) free_host_.push_back(block);
}

PrefixCache::Match PrefixCache::find(NodeId parent, int32_t adapter, std::span<const TokenId> tokens) const {
  LLMB_CHECK(static_cast<int32_t>(tokens.size()) <= block_size_);
  Match match;
  NodeId at = parent == kNoNode ? root_ : nodes_[parent].child;
  while (at != kNoNode) {
    const Node& node = nodes_[at];
    if (node.adapter != adapter) {
      at = adapter < node.adapter ? node.left : node.right;
      continue;
    }
    const std::span<const TokenId> held = tokens_of(at);
    const int32_t num_common = common_beginning(tokens, held);
    if (num_common > match.num_tokens) match.node = at, match.num_tokens = num_common;
    const int32_t num_ready = std::min(num_common, node.num_ready);
    if (num_ready > match.num_ready_tokens) match.ready_node = at, match.num_ready_tokens = num_ready;
    if (num_ready == static_cast<int32_t>(tokens.size())) break;
    const auto i = static_cast<size_t>(num_common);
    const bool is_before = i == tokens.size() ? i < held.size() : i < held.size() && tokens[i] < held[i];
    at = is_before ? node.left : node.right;
  }
  return match;
}

NodeId PrefixCache::insert(NodeId parent, int32_t adapter, std::span<const TokenId> tokens, int32_t num_ready,
                           std::span<const BlockId> blocks) {
  const auto num_tokens = static_cast<int32_t>(tokens.size());
  LLMB_CHECK(num_tokens >= 1 && num_tokens <= block_size_ && num_ready >= 0 && num_ready <= num_tokens);
  LLMB_CHECK(static_cast<int32_t>(blocks.size()) == num_groups());
  LLMB_CHECK(std::none_of(blocks.begin(), blocks.end(), [&](BlockId block) { return is_idle(block); }));
  LLMB_CHECK(parent == kNoNode || (nodes_[parent].num_tokens == block_size_ && nodes_[parent].adapter == adapter));
  const Match same = find(parent, adapter, tokens);
  if (same.num_tokens == num_tokens) {
    if (num_tokens == block_size_) put(same.node, num_ready, blocks);
    return same.node;
  }
  NodeId node = unfilled_node_of(blocks);
  if (node == kNoNode) {
    node = new_node(parent, adapter);
  } else {  // it is not full, so nothing is behind it
    LLMB_CHECK(nodes_[node].parent == parent && nodes_[node].adapter == adapter);
    LLMB_CHECK(nodes_[node].num_tokens < num_tokens);
    unlink(node);
  }
  std::copy(tokens.begin(), tokens.end(), tokens_.begin() + int64_t{node} * block_size_);
  nodes_[node].num_tokens = nodes_[node].num_ready = num_tokens;
  link(node);
  put(node, num_ready, blocks);
  LLMB_CHECK(nodes_[node].num_uses > 0 || num_tokens == block_size_);
  return node;
}

NodeId PrefixCache::new_node(NodeId parent, int32_t adapter) {
  if (free_nodes_.empty()) {
    free_nodes_.push_back(static_cast<NodeId>(nodes_.size()));
    nodes_.emplace_back();
    tokens_.resize(nodes_.size() * block_size_);
    blocks_.resize(nodes_.size() * num_groups(), kNoBlock);
    if (num_host_blocks_ > 0) kept_.resize(blocks_.size());
  }
  const NodeId node = free_nodes_.back();
  free_nodes_.pop_back();
  nodes_[node].serial = ++num_made_;
  nodes_[node].adapter = adapter;
  nodes_[node].parent = parent;
  if (parent != kNoNode) ++nodes_[parent].num_uses;
  return node;
}

// In which these blocks stand already, and that may get more tokens.
NodeId PrefixCache::unfilled_node_of(std::span<const BlockId> blocks) const {
  for (const BlockId block : blocks) {
    if (!holds(block)) continue;
    const NodeId node = places_[block].node;
    if (nodes_[node].num_tokens < block_size_ && !is_on_host(node)) return node;
  }
  return kNoNode;
}

bool PrefixCache::is_on_host(NodeId node) const {
  for (int32_t group = 0; group < num_groups(); ++group)
    if (host_block(node, group) != kNoBlock) return true;
  return false;
}

void PrefixCache::put(NodeId node, int32_t num_ready, std::span<const BlockId> blocks) {
  bool is_any = false;
  for (int32_t group = 0; group < num_groups(); ++group) {
    const BlockId block = blocks[group];
    if (block == kNoBlock) continue;
    if (!is_known(block)) places_.resize(block + size_t{1});
    const NodeId before = places_[block].node;
    is_any |= before == node;
    if (before == node || this->block(node, group) != kNoBlock) continue;
    // One that is known by its first tokens only moves to the node that has all of them.
    if (before != kNoNode && nodes_[before].num_tokens == block_size_) continue;
    ++nodes_[node].num_uses;
    if (before != kNoNode) leave(block);
    places_[block].node = node;
    blocks_[int64_t{node} * num_groups() + group] = block;
    is_any = true;
  }
  if (!is_any || num_ready >= nodes_[node].num_ready) return;
  if (nodes_[node].num_ready == nodes_[node].num_tokens) fresh_.push_back(node);
  nodes_[node].num_ready = num_ready;
}

void PrefixCache::leave(BlockId block) {
  const NodeId node = std::exchange(places_[block].node, kNoNode);
  const auto begin = blocks_.begin() + int64_t{node} * num_groups();
  *std::find(begin, begin + num_groups(), block) = kNoBlock;
  drop_use(node);
}

// With the last one the node is forgotten, and its parent loses one.
void PrefixCache::drop_use(NodeId node) {
  while (node != kNoNode && --nodes_[node].num_uses == 0) {
    unlink(node);
    std::erase(fresh_, node);
    const NodeId parent = nodes_[node].parent;
    nodes_[node] = Node();
    free_nodes_.push_back(node);
    node = parent;
  }
}

void PrefixCache::hold(NodeId node) {
  if (node == kNoNode) return;
  ++nodes_[node].num_holders;
  ++nodes_[node].num_uses;
}

void PrefixCache::let_go(NodeId node) {
  if (node == kNoNode) return;
  LLMB_CHECK(nodes_[node].num_holders > 0);
  --nodes_[node].num_holders;
  drop_use(node);
}

void PrefixCache::make_ready() {
  for (const NodeId node : fresh_) nodes_[node].num_ready = nodes_[node].num_tokens;
  fresh_.clear();
  free_host_.insert(free_host_.end(), left_host_.begin(), left_host_.end());
  left_host_.clear();
}

template <class Change>
void PrefixCache::change_wanted(NodeId last, int32_t num_tokens, const Change& change) {
  const int32_t num_whole = num_tokens / block_size_ * block_size_;
  for (auto i = static_cast<int32_t>(ceil_div(num_tokens, block_size_)) - 1; i >= 0; --i, last = parent(last))
    for (int32_t group = 0; group < num_groups(); ++group)
      if (i >= first_seen(windows_[group], num_whole) / block_size_) change(&kept(last, group));
}

void PrefixCache::want(NodeId last, int32_t num_tokens) {
  LLMB_CHECK(num_host_blocks_ > 0 && num_tokens >= 1);
  hold(last);
  change_wanted(last, num_tokens, [](Kept* kept) { ++kept->num_wanted; });
}

void PrefixCache::unwant(NodeId last, int32_t num_tokens) {
  change_wanted(last, num_tokens, [&](Kept* kept) {
    LLMB_CHECK(kept->num_wanted > 0);
    if (--kept->num_wanted == 0 && kept->host != kNoBlock) left_host_.push_back(std::exchange(kept->host, kNoBlock));
  });
  let_go(last);
}

NodeId PrefixCache::want_computed(int32_t adapter, std::span<const TokenId> tokens, std::vector<HostPlace>* to_fill) {
  const auto num_nodes = static_cast<int32_t>(static_cast<int64_t>(tokens.size()) / block_size_);
  const auto first = [&](int32_t group) { return first_seen(windows_[group], num_nodes * block_size_) / block_size_; };
  size_t num_blocks = 0;  // at most
  for (int32_t group = 0; group < num_groups(); ++group) num_blocks += static_cast<size_t>(num_nodes - first(group));
  if (num_nodes == 0 || num_blocks > free_host_.size()) return kNoNode;
  const std::vector<BlockId> none(windows_.size(), kNoBlock);
  NodeId last = kNoNode;
  for (int32_t i = 0; i < num_nodes; ++i) {
    const NodeId node = insert(last, adapter, tokens.subspan(int64_t{i} * block_size_, block_size_), block_size_, none);
    hold(node);  // until want() does
    let_go(std::exchange(last, node));
  }
  want(last, num_nodes * block_size_);
  let_go(last);
  NodeId node = last;
  for (int32_t i = num_nodes - 1; i >= 0; --i, node = parent(node))
    for (int32_t group = 0; group < num_groups(); ++group) {
      Kept& here = kept(node, group);
      if (i < first(group) || block(node, group) != kNoBlock || here.host != kNoBlock) continue;
      here.host = free_host_.back();
      free_host_.pop_back();
      to_fill->push_back({{group, i}, here.host});
    }
  return last;
}

// The block is about to be evicted.
void PrefixCache::keep(BlockId block) {
  if (!keeps_evicted_ || free_host_.empty()) return;
  const NodeId node = places_[block].node;
  int32_t group = 0;
  while (this->block(node, group) != block) ++group;
  Kept& here = kept(node, group);
  if (here.num_wanted == 0 || here.host != kNoBlock) return;
  here.host = free_host_.back();
  free_host_.pop_back();
  swaps_out_.push_back({group, block, here.host});
}

bool PrefixCache::is_oldest_wanted() const {
  if (kept_.empty()) return false;
  const NodeId node = places_[oldest_].node;
  int32_t group = 0;
  while (block(node, group) != oldest_) ++group;
  return kept(node, group).num_wanted > 0;
}

void PrefixCache::put_back(NodeId node, int32_t group, BlockId block) {
  LLMB_CHECK(nodes_[node].num_tokens == block_size_ && !holds(block));
  LLMB_CHECK(this->block(node, group) == kNoBlock && host_block(node, group) != kNoBlock);
  std::vector<BlockId> blocks(windows_.size(), kNoBlock);
  blocks[group] = block;
  put(node, 0, blocks);
}

void PrefixCache::take_swaps_out(std::vector<BlockCopy>* swaps) {
  swaps->insert(swaps->end(), swaps_out_.begin(), swaps_out_.end());
  swaps_out_.clear();
}

void PrefixCache::become_idle(BlockId block) {
  LLMB_CHECK(holds(block) && !is_idle(block));
  Place& place = places_[block];
  place.is_idle = true;
  place.older = newest_;
  (newest_ == kNoBlock ? oldest_ : places_[newest_].newer) = block;
  newest_ = block;
  ++num_idle_;
}

void PrefixCache::reuse(BlockId block) {
  LLMB_CHECK(is_idle(block));
  Place& place = places_[block];
  (place.older == kNoBlock ? oldest_ : places_[place.older].newer) = place.newer;
  (place.newer == kNoBlock ? newest_ : places_[place.newer].older) = place.older;
  place.older = place.newer = kNoBlock;
  place.is_idle = false;
  --num_idle_;
}

BlockId PrefixCache::evict() {
  LLMB_CHECK(num_idle_ > 0);
  const BlockId block = oldest_;
  reuse(block);
  keep(block);
  leave(block);
  ++num_evictions_;
  return block;
}

// REQUIRES: behind the same node.
bool PrefixCache::goes_before(NodeId a, NodeId b) const {
  if (nodes_[a].adapter != nodes_[b].adapter) return nodes_[a].adapter < nodes_[b].adapter;
  const std::span<const TokenId> held_by_a = tokens_of(a), held_by_b = tokens_of(b);
  return std::lexicographical_compare(held_by_a.begin(), held_by_a.end(), held_by_b.begin(), held_by_b.end());
}

// Takes the place of the first node on its path that goes below it, whose tree is split into what goes before and
// after.
void PrefixCache::link(NodeId node) {
  NodeId* slot = root_behind(nodes_[node].parent);
  while (*slot != kNoNode && goes_above(*slot, node))
    slot = goes_before(node, *slot) ? &nodes_[*slot].left : &nodes_[*slot].right;
  NodeId rest = *slot;
  *slot = node;
  NodeId *before = &nodes_[node].left, *after = &nodes_[node].right;
  while (rest != kNoNode) {
    const bool is_before = goes_before(rest, node);
    *(is_before ? before : after) = rest;
    if (is_before) before = &nodes_[rest].right;
    else after = &nodes_[rest].left;
    rest = is_before ? *before : *after;
  }
  *before = *after = kNoNode;
}

// The trees on its two sides are merged in its place.
void PrefixCache::unlink(NodeId node) {
  NodeId* slot = root_behind(nodes_[node].parent);
  while (*slot != node) slot = goes_before(node, *slot) ? &nodes_[*slot].left : &nodes_[*slot].right;
  NodeId before = nodes_[node].left, after = nodes_[node].right;
  while (before != kNoNode && after != kNoNode) {
    const bool is_before = goes_above(before, after);
    *slot = is_before ? before : after;
    slot = is_before ? &nodes_[before].right : &nodes_[after].left;
    (is_before ? before : after) = *slot;
  }
  *slot = before != kNoNode ? before : after;
  nodes_[node].left = nodes_[node].right = kNoNode;
}

}  // namespace llmb
