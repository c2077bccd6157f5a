// PrefixCache::check_integrity: every invariant of prefix_cache.h.
#include <algorithm>
#include <string>

#include "cache/prefix_cache.h"

namespace llmb {

namespace {

Status broken(const std::string& invariant, int32_t id) {
  return internal_error("prefix cache invariant broken: " + invariant + ": " + std::to_string(id));
}

}  // namespace

// Invariants 1, 2 and 4 of the nodes behind one node, in their order.
Status PrefixCache::check_behind(NodeId parent, std::vector<uint8_t>* seen) const {
  std::vector<NodeId> above;
  NodeId at = parent == kNoNode ? root_ : nodes_[parent].child, last = kNoNode;
  while (at != kNoNode || !above.empty()) {
    for (; at != kNoNode; at = nodes_[at].left) {
      const Node& node = nodes_[at];
      for (const NodeId below : {node.left, node.right})
        if (below != kNoNode && !goes_above(at, below)) return broken("search trees are heaps", at);
      above.push_back(at);
    }
    at = above.back();
    above.pop_back();
    const Node& node = nodes_[at];
    if ((*seen)[at]++ || node.num_tokens == 0 || node.parent != parent) return broken("a node is behind one node", at);
    if (last != kNoNode && !goes_before(last, at)) return broken("1", at);
    if (node.child != kNoNode && node.num_tokens != block_size_) return broken("2, full", at);
    if (parent != kNoNode && node.adapter != nodes_[parent].adapter) return broken("one adapter a chain", at);
    const bool is_fresh = std::find(fresh_.begin(), fresh_.end(), at) != fresh_.end();
    if (node.num_ready > node.num_tokens || (node.num_ready < node.num_tokens && !is_fresh)) return broken("4", at);
    LLMB_RETURN_IF_ERROR(check_blocks(at));
    last = at;
    at = node.right;
  }
  return {};
}

Status PrefixCache::check_blocks(NodeId node) const {
  for (int32_t group = 0; group < num_groups(); ++group) {
    const BlockId here = block(node, group);
    if (here == kNoBlock) continue;
    if (!holds(here) || places_[here].node != node) return broken("5, a block's node", node);
    if (windows_[group] > 0 || parent(node) == kNoNode) continue;
    const BlockId before = block(parent(node), group);
    if (before == kNoBlock) return broken("2, a block before it", node);
    if (is_idle(before) && !is_idle(here)) return broken("2, idle", node);
  }
  return {};
}

Status PrefixCache::check_uses() const {
  std::vector<int32_t> num_uses(nodes_.size());
  int64_t num_standing = 0, num_known = 0;
  for (NodeId node = 0; node < static_cast<int64_t>(nodes_.size()); ++node) {
    if (nodes_[node].num_tokens == 0) continue;
    num_uses[node] += nodes_[node].num_holders;
    if (parent(node) != kNoNode) ++num_uses[parent(node)];
    for (int32_t group = 0; group < num_groups(); ++group) {
      num_uses[node] += block(node, group) != kNoBlock;
      num_standing += block(node, group) != kNoBlock;
    }
  }
  for (NodeId node = 0; node < static_cast<int64_t>(nodes_.size()); ++node)
    if (num_uses[node] != nodes_[node].num_uses || (num_uses[node] == 0) != (nodes_[node].num_tokens == 0))
      return broken("5, every node is in use", node);
  for (const Place& place : places_) num_known += place.node != kNoNode;
  return num_known == num_standing ? Status() : broken("5, one place", kNoNode);
}

Status PrefixCache::check_idle() const {
  std::vector<int32_t> order(places_.size(), -1);
  BlockId last = kNoBlock;
  int32_t count = 0;
  for (BlockId at = oldest_; at != kNoBlock; last = at, at = places_[at].newer) {
    if (!is_idle(at) || !holds(at) || places_[at].older != last || order[at] >= 0) return broken("3", at);
    order[at] = count++;
  }
  if (last != newest_ || count != num_idle_) return broken("3, the count", newest_);
  for (BlockId at = 0; at < static_cast<int64_t>(places_.size()); ++at) {
    if (!is_idle(at)) continue;
    if (order[at] < 0) return broken("3, all", at);
    const NodeId node = places_[at].node;
    for (int32_t group = 0; group < num_groups() && parent(node) != kNoNode; ++group) {
      const BlockId before = block(parent(node), group);
      if (windows_[group] == 0 && block(node, group) == at && is_idle(before) && order[before] < order[at])
        return broken("3, leaves first", at);
    }
  }
  return {};
}

Status PrefixCache::check_host() const {
  std::vector<int32_t> num_found(static_cast<size_t>(num_host_blocks_));
  for (const auto* blocks : {&free_host_, &left_host_})
    for (const BlockId block : *blocks) ++num_found[block];
  for (const Kept& kept : kept_) {
    if (kept.num_wanted < 0 || (kept.num_wanted == 0 && kept.host != kNoBlock)) return broken("6, wanted", kept.host);
    if (kept.host != kNoBlock) ++num_found[kept.host];
  }
  for (const int32_t count : num_found)
    if (count != 1) return broken("6, each once", count);
  return {};
}

Status PrefixCache::check_integrity() const {
  std::vector<uint8_t> seen(nodes_.size());
  LLMB_RETURN_IF_ERROR(check_behind(kNoNode, &seen));
  for (NodeId node = 0; node < static_cast<int64_t>(nodes_.size()); ++node)
    if (nodes_[node].num_tokens > 0) LLMB_RETURN_IF_ERROR(check_behind(node, &seen));
  for (NodeId node = 0; node < static_cast<int64_t>(nodes_.size()); ++node)
    if ((nodes_[node].num_tokens > 0) != (seen[node] == 1)) return broken("every node is behind one", node);
  LLMB_RETURN_IF_ERROR(check_uses());
  LLMB_RETURN_IF_ERROR(check_host());
  return check_idle();
}

}  // namespace llmb
