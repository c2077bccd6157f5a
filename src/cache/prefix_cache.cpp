#include "cache/prefix_cache.h"

#include <algorithm>
#include <string>

#include "base/check.h"

namespace llmb {

namespace {

// Decides the shape of the search trees: ids handed out in order must not give lists.
uint32_t priority(BlockId block) {
  uint32_t x = static_cast<uint32_t>(block) * 0x9E3779B1u;
  x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
  return x ^ (x >> 13);
}

bool goes_above(BlockId a, BlockId b) {
  const uint32_t pa = priority(a), pb = priority(b);
  return pa != pb ? pa > pb : a < b;
}

Status broken(const std::string& invariant, BlockId block) {
  return internal_error("prefix cache invariant broken: " + invariant + ": block " + std::to_string(block));
}

int32_t common_beginning(std::span<const TokenId> a, std::span<const TokenId> b) {
  return static_cast<int32_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace

PrefixCache::PrefixCache(int32_t block_size, int32_t num_groups) : block_size_(block_size), num_groups_(num_groups) {
  LLMB_CHECK(block_size >= 1 && num_groups >= 1);
}

void PrefixCache::make_room_for(BlockId block) {
  if (block < static_cast<int64_t>(nodes_.size())) return;
  nodes_.resize(block + size_t{1});
  tokens_.resize(nodes_.size() * block_size_);
  beside_.resize(nodes_.size() * (num_groups_ - 1), kNoBlock);
}

PrefixCache::Match PrefixCache::find(BlockId parent, int32_t adapter, std::span<const TokenId> tokens) const {
  LLMB_CHECK(static_cast<int32_t>(tokens.size()) <= block_size_);
  Match match;
  BlockId at = parent == kNoBlock ? root_ : nodes_[parent].child;
  while (at != kNoBlock) {
    const Node& node = nodes_[at];
    if (node.adapter != adapter) {
      at = adapter < node.adapter ? node.left : node.right;
      continue;
    }
    const std::span<const TokenId> held = tokens_of(at);
    const int32_t num_common = common_beginning(tokens, held);
    if (num_common > match.num_tokens) match.block = at, match.num_tokens = num_common;
    const int32_t num_ready = std::min(num_common, node.num_ready);
    if (num_ready > match.num_ready_tokens) match.ready_block = at, match.num_ready_tokens = num_ready;
    if (num_ready == static_cast<int32_t>(tokens.size())) break;
    const auto i = static_cast<size_t>(num_common);
    const bool is_before = i == tokens.size() ? i < held.size() : i < held.size() && tokens[i] < held[i];
    at = is_before ? node.left : node.right;
  }
  return match;
}

BlockId PrefixCache::insert(BlockId parent, int32_t adapter, std::span<const TokenId> tokens, int32_t num_ready,
                            BlockId block) {
  const auto num_tokens = static_cast<int32_t>(tokens.size());
  LLMB_CHECK(num_tokens >= 1 && num_tokens <= block_size_ && num_ready >= 0 && num_ready <= num_tokens);
  LLMB_CHECK(block >= 0 && block != parent && !is_idle(block));
  LLMB_CHECK(parent == kNoBlock || (holds(parent) && !is_idle(parent) && nodes_[parent].num_tokens == block_size_ &&
                                    nodes_[parent].adapter == adapter));
  const Match same = find(parent, adapter, tokens);
  if (same.num_tokens == num_tokens) return same.block;
  make_room_for(block);
  Node& node = nodes_[block];
  if (node.num_tokens > 0) {  // it is not full, so nothing is behind it
    LLMB_CHECK(node.parent == parent && node.adapter == adapter && node.num_tokens < num_tokens);
    unlink(block);
  }
  std::copy(tokens.begin(), tokens.end(), tokens_.begin() + int64_t{block} * block_size_);
  node.num_tokens = num_tokens;
  node.num_ready = num_ready;
  node.adapter = adapter;
  node.parent = parent;
  link(block);
  if (num_ready < num_tokens) fresh_.push_back(block);
  return block;
}

BlockId PrefixCache::put_beside(BlockId first, int32_t group, BlockId block) {
  LLMB_CHECK(group >= 1 && group < num_groups_ && holds(first) && !is_idle(first) && !is_idle(block));
  make_room_for(block);
  LLMB_CHECK(nodes_[first].num_tokens > 0 && nodes_[block].num_tokens == 0);
  BlockId& place = beside_[int64_t{first} * (num_groups_ - 1) + group - 1];
  if (place != kNoBlock) return place;
  if (nodes_[block].first != kNoBlock) return kNoBlock;
  nodes_[block].first = first;
  return place = block;
}

void PrefixCache::leave_side(BlockId block) {
  const auto begin = beside_.begin() + int64_t{nodes_[block].first} * (num_groups_ - 1);
  *std::find(begin, begin + num_groups_ - 1, block) = kNoBlock;
  nodes_[block] = Node();
}

void PrefixCache::make_ready() {
  for (const BlockId block : fresh_) nodes_[block].num_ready = nodes_[block].num_tokens;
  fresh_.clear();
}

void PrefixCache::become_idle(BlockId block) {
  LLMB_CHECK(holds(block) && !nodes_[block].is_idle);
  Node& node = nodes_[block];
  node.is_idle = true;
  node.older = newest_;
  (newest_ == kNoBlock ? oldest_ : nodes_[newest_].newer) = block;
  newest_ = block;
  ++num_idle_;
}

void PrefixCache::reuse(BlockId block) {
  LLMB_CHECK(is_idle(block));
  Node& node = nodes_[block];
  (node.older == kNoBlock ? oldest_ : nodes_[node.older].newer) = node.newer;
  (node.newer == kNoBlock ? newest_ : nodes_[node.newer].older) = node.older;
  node.older = node.newer = kNoBlock;
  node.is_idle = false;
  --num_idle_;
}

void PrefixCache::evict(std::vector<BlockId>* evicted) {
  LLMB_CHECK(num_idle_ > 0);
  const auto forget = [&](BlockId block) {
    reuse(block);
    evicted->push_back(block);
    ++num_evictions_;
  };
  const BlockId block = oldest_;
  forget(block);
  if (nodes_[block].first != kNoBlock) return leave_side(block);
  LLMB_CHECK_MSG(nodes_[block].child == kNoBlock, "the oldest idle block has blocks behind it");
  for (int32_t group = 1; group < num_groups_; ++group) {
    const BlockId other = beside(block, group);
    if (other == kNoBlock) continue;
    if (is_idle(other)) forget(other);
    leave_side(other);
  }
  unlink(block);
  nodes_[block] = Node();
}

// REQUIRES: behind the same block.
bool PrefixCache::goes_before(BlockId a, BlockId b) const {
  if (nodes_[a].adapter != nodes_[b].adapter) return nodes_[a].adapter < nodes_[b].adapter;
  const std::span<const TokenId> held_by_a = tokens_of(a), held_by_b = tokens_of(b);
  return std::lexicographical_compare(held_by_a.begin(), held_by_a.end(), held_by_b.begin(), held_by_b.end());
}

// Takes the place of the first node on its path that goes below it, whose tree is split into what goes before and
// after.
void PrefixCache::link(BlockId block) {
  BlockId* slot = root_behind(nodes_[block].parent);
  while (*slot != kNoBlock && goes_above(*slot, block))
    slot = goes_before(block, *slot) ? &nodes_[*slot].left : &nodes_[*slot].right;
  BlockId rest = *slot;
  *slot = block;
  BlockId *before = &nodes_[block].left, *after = &nodes_[block].right;
  while (rest != kNoBlock) {
    const bool is_before = goes_before(rest, block);
    *(is_before ? before : after) = rest;
    if (is_before) before = &nodes_[rest].right;
    else after = &nodes_[rest].left;
    rest = is_before ? *before : *after;
  }
  *before = *after = kNoBlock;
}

// The trees on its two sides are merged in its place.
void PrefixCache::unlink(BlockId block) {
  BlockId* slot = root_behind(nodes_[block].parent);
  while (*slot != block) slot = goes_before(block, *slot) ? &nodes_[*slot].left : &nodes_[*slot].right;
  BlockId before = nodes_[block].left, after = nodes_[block].right;
  while (before != kNoBlock && after != kNoBlock) {
    const bool is_before = goes_above(before, after);
    *slot = is_before ? before : after;
    slot = is_before ? &nodes_[before].right : &nodes_[after].left;
    (is_before ? before : after) = *slot;
  }
  *slot = before != kNoBlock ? before : after;
  nodes_[block].left = nodes_[block].right = kNoBlock;
}

// Invariants 1, 2 and 4 of the blocks behind one block, in their order.
Status PrefixCache::check_behind(BlockId parent, std::vector<uint8_t>* seen) const {
  std::vector<BlockId> above;
  BlockId at = parent == kNoBlock ? root_ : nodes_[parent].child, last = kNoBlock;
  while (at != kNoBlock || !above.empty()) {
    for (; at != kNoBlock; at = nodes_[at].left) {
      const Node& node = nodes_[at];
      for (const BlockId below : {node.left, node.right})
        if (below != kNoBlock && !goes_above(at, below)) return broken("search trees are heaps", at);
      above.push_back(at);
    }
    at = above.back();
    above.pop_back();
    const Node& node = nodes_[at];
    if ((*seen)[at]++ || !holds(at) || node.parent != parent) return broken("a block is behind one block", at);
    if (last != kNoBlock && !goes_before(last, at)) return broken("1", at);
    if (node.child != kNoBlock && node.num_tokens != block_size_) return broken("2, full", at);
    if (parent != kNoBlock && !node.is_idle && nodes_[parent].is_idle) return broken("2, idle", at);
    if (parent != kNoBlock && node.adapter != nodes_[parent].adapter) return broken("one adapter a chain", at);
    const bool is_fresh = std::find(fresh_.begin(), fresh_.end(), at) != fresh_.end();
    if (node.num_ready > node.num_tokens || (node.num_ready < node.num_tokens && !is_fresh)) return broken("4", at);
    last = at;
    at = node.right;
  }
  return {};
}

Status PrefixCache::check_idle(std::vector<uint8_t>* seen) const {
  BlockId last = kNoBlock;
  int32_t count = 0;
  for (BlockId at = oldest_; at != kNoBlock; last = at, at = nodes_[at].newer) {
    if (!is_idle(at) || nodes_[at].older != last || (*seen)[at]++) return broken("3", at);
    if (nodes_[at].parent != kNoBlock && (*seen)[nodes_[at].parent]) return broken("3, leaves first", at);
    ++count;
  }
  if (last != newest_ || count != num_idle_) return broken("3, the count", newest_);
  for (BlockId at = 0; at < static_cast<int64_t>(nodes_.size()); ++at)
    if (is_idle(at) && !(*seen)[at]) return broken("3, all", at);
  return {};
}

Status PrefixCache::check_beside() const {
  int64_t num_named = 0, num_beside = 0;
  for (BlockId block = 0; block < static_cast<int64_t>(nodes_.size()); ++block) {
    for (int32_t group = 1; group < num_groups_; ++group) {
      const BlockId other = beside(block, group);
      if (other == kNoBlock) continue;
      ++num_named;
      if (nodes_[block].num_tokens == 0 || nodes_[other].first != block) return broken("5", other);
    }
    num_beside += nodes_[block].first != kNoBlock;
    if (nodes_[block].first != kNoBlock && nodes_[block].num_tokens > 0) return broken("5, one place", block);
  }
  return num_named == num_beside ? Status() : broken("5, each has a place", kNoBlock);
}

Status PrefixCache::check_integrity() const {
  std::vector<uint8_t> seen(nodes_.size());
  LLMB_RETURN_IF_ERROR(check_behind(kNoBlock, &seen));
  for (BlockId block = 0; block < static_cast<int64_t>(nodes_.size()); ++block)
    if (nodes_[block].num_tokens > 0) LLMB_RETURN_IF_ERROR(check_behind(block, &seen));
  for (BlockId block = 0; block < static_cast<int64_t>(nodes_.size()); ++block)
    if ((nodes_[block].num_tokens > 0) != (seen[block] == 1)) return broken("every block is behind one", block);
  LLMB_RETURN_IF_ERROR(check_beside());
  seen.assign(nodes_.size(), 0);
  return check_idle(&seen);
}

}  // namespace llmb
