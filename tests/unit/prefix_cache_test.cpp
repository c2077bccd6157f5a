// The tree of cached blocks, case by case.
#include "cache/prefix_cache.h"

#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "base/check.h"

namespace llmb::test {

namespace {

using Tokens = std::vector<TokenId>;

Tokens range(TokenId first, int32_t count) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// In a cache of one layer group: the node that has the tokens.
NodeId insert(PrefixCache* cache, NodeId parent, int32_t adapter, const Tokens& tokens, int32_t num_ready,
              BlockId block) {
  return cache->insert(parent, adapter, tokens, num_ready, {&block, 1});
}

void check(const PrefixCache& cache) {
  const Status status = cache.check_integrity();
  REQUIRE_MESSAGE(status.ok(), status.message());
}

}  // namespace

TEST_CASE("blocks are found by their tokens and by what stands before them") {
  PrefixCache cache(4);
  CHECK(cache.find(kNoNode, -1, range(0, 4)).node == kNoNode);
  const NodeId first = insert(&cache, kNoNode, -1, range(0, 4), 4, 7);
  const NodeId second = insert(&cache, first, -1, range(4, 4), 4, 3);
  CHECK(cache.block(first, 0) == 7);
  CHECK(cache.parent(second) == first);
  const PrefixCache::Match match = cache.find(first, -1, range(4, 4));
  CHECK(match.node == second);
  CHECK(cache.block(match.node, 0) == 3);
  CHECK(match.num_tokens == 4);
  CHECK(match.num_ready_tokens == 4);
  CHECK(cache.find(kNoNode, -1, range(4, 4)).num_tokens == 0);  // the same tokens elsewhere
  CHECK(cache.find(kNoNode, 0, range(0, 4)).num_tokens == 0);   // of another adapter
  CHECK(cache.find(second, -1, range(0, 4)).num_tokens == 0);
  CHECK(cache.find(kNoNode, -1, {}).num_tokens == 0);
  check(cache);
}

TEST_CASE("the longest common beginning is found among many blocks, none to block_size tokens long") {
  PrefixCache cache(4);
  BlockId block = 0;
  for (const Tokens& tokens : {Tokens{1, 2, 3, 4}, Tokens{1, 2, 5, 6}, Tokens{1, 2}, Tokens{9}, Tokens{1, 3, 3, 3}})
    insert(&cache, kNoNode, -1, tokens, static_cast<int32_t>(tokens.size()), block++);
  const auto longest = [&](const Tokens& tokens) {
    const PrefixCache::Match match = cache.find(kNoNode, -1, tokens);
    CHECK(match.num_tokens == match.num_ready_tokens);
    return std::pair(match.num_tokens > 0 ? cache.block(match.node, 0) : kNoBlock, match.num_tokens);
  };
  CHECK(longest({2, 2}) == std::pair(kNoBlock, 0));
  CHECK(longest({9, 9, 9, 9}) == std::pair(3, 1));
  CHECK(longest({1, 2, 5, 7}) == std::pair(1, 3));
  CHECK(longest({1, 2, 5, 6}) == std::pair(1, 4));
  CHECK(longest({1, 2, 9, 9}).second == 2);
  CHECK(longest({1}).second == 1);
  check(cache);
}

TEST_CASE("of two blocks with the same tokens the first stays; one that another begins with is not kept") {
  PrefixCache cache(4);
  const NodeId node = insert(&cache, kNoNode, -1, range(0, 4), 4, 0);
  CHECK(insert(&cache, kNoNode, -1, range(0, 4), 4, 1) == node);
  CHECK(insert(&cache, kNoNode, -1, range(0, 3), 3, 2) == node);
  CHECK(cache.block(node, 0) == 0);
  CHECK_FALSE(cache.holds(1));
  CHECK_FALSE(cache.holds(2));
  CHECK(cache.block(insert(&cache, kNoNode, 5, range(0, 4), 4, 1), 0) == 1);  // of another adapter
  check(cache);
}

TEST_CASE("a block that is not full grows where it stands") {
  PrefixCache cache(4);
  const NodeId node = insert(&cache, kNoNode, -1, range(0, 2), 2, 0);
  CHECK(insert(&cache, kNoNode, -1, range(0, 2), 2, 0) == node);
  CHECK_THROWS_AS(insert(&cache, node, -1, range(4, 4), 4, 1), CheckFailure);  // nothing stands behind it yet
  CHECK(insert(&cache, kNoNode, -1, range(0, 4), 3, 0) == node);
  CHECK(cache.find(kNoNode, -1, range(0, 4)).num_tokens == 4);
  CHECK(cache.find(kNoNode, -1, range(0, 4)).num_ready_tokens == 3);
  cache.make_ready();
  CHECK(cache.find(kNoNode, -1, range(0, 4)).num_ready_tokens == 4);
  CHECK(insert(&cache, node, -1, range(4, 4), 4, 1) != node);
  check(cache);
}

TEST_CASE("idle blocks are forgotten oldest first, leaves before their parents, and used again until then") {
  PrefixCache cache(2);
  NodeId node = kNoNode;
  for (BlockId block = 0; block < 3; ++block) node = insert(&cache, node, -1, range(0, 2), 2, block);  // a chain
  insert(&cache, cache.find(kNoNode, -1, range(0, 2)).node, -1, range(8, 2), 2, 3);
  CHECK_THROWS_AS(cache.evict(), CheckFailure);
  for (const BlockId block : {3, 2, 1, 0}) cache.become_idle(block);
  check(cache);
  CHECK(cache.num_idle() == 4);
  CHECK_THROWS_AS(cache.become_idle(0), CheckFailure);
  CHECK_THROWS_AS(insert(&cache, kNoNode, -1, range(5, 2), 2, 0), CheckFailure);  // nobody has it
  cache.reuse(0);
  cache.reuse(3);
  check(cache);
  cache.become_idle(3);
  cache.become_idle(0);
  for (const BlockId block : {2, 1, 3, 0}) {
    CHECK(cache.evict() == block);
    check(cache);
  }
  CHECK(cache.num_idle() == 0);
  CHECK(cache.num_nodes() == 0);
  CHECK(cache.find(kNoNode, -1, range(0, 2)).num_tokens == 0);
}

TEST_CASE("a node holds a block of each layer group or nothing, and stays while it leads to others") {
  PrefixCache cache(2, {0, 3, 3});
  const NodeId first = cache.insert(kNoNode, -1, range(0, 2), 2, std::vector<BlockId>{0, 5, kNoBlock});
  const NodeId second = cache.insert(first, -1, range(2, 2), 2, std::vector<BlockId>{1, kNoBlock, 8});
  CHECK(cache.block(first, 1) == 5);
  CHECK(cache.block(first, 2) == kNoBlock);
  // A block takes a place that is empty, and no other; one that stands somewhere stays there.
  CHECK(cache.insert(kNoNode, -1, range(0, 2), 2, std::vector<BlockId>{2, 6, 7}) == first);
  CHECK(cache.insert(first, -1, range(2, 2), 2, std::vector<BlockId>{1, 5, 8}) == second);
  CHECK(cache.block(first, 0) == 0);
  CHECK(cache.block(first, 1) == 5);
  CHECK(cache.block(first, 2) == 7);
  CHECK(cache.block(second, 1) == kNoBlock);
  for (const BlockId block : {2, 6}) CHECK_FALSE(cache.holds(block));
  check(cache);
  for (const BlockId block : {5, 7, 1, 0, 8}) cache.become_idle(block);
  check(cache);
  for (const BlockId block : {5, 7, 1, 0}) {
    CHECK(cache.evict() == block);
    check(cache);
  }
  CHECK(cache.num_nodes() == 2);  // the first leads to the second
  CHECK(cache.block(first, 0) == kNoBlock);
  CHECK(cache.evict() == 8);
  CHECK(cache.num_nodes() == 0);
  check(cache);
}

TEST_CASE("where all layers see windows, a node without blocks leads to some that have them") {
  PrefixCache cache(2, {3});
  const NodeId first = insert(&cache, kNoNode, -1, range(0, 2), 2, 0);
  const NodeId second = insert(&cache, first, -1, range(2, 2), 2, 1);
  cache.become_idle(0);  // its window is past it
  check(cache);
  CHECK(cache.evict() == 0);
  check(cache);
  CHECK(cache.find(kNoNode, -1, range(0, 2)).node == first);
  CHECK(cache.find(first, -1, range(2, 2)).node == second);
  // Who computes it again puts it there, written by the plan being made.
  CHECK(insert(&cache, kNoNode, -1, range(0, 2), 1, 2) == first);
  CHECK(cache.block(first, 0) == 2);
  CHECK(cache.find(kNoNode, -1, range(0, 2)).num_ready_tokens == 1);
  cache.make_ready();
  CHECK(cache.find(kNoNode, -1, range(0, 2)).num_ready_tokens == 2);
  check(cache);
}

TEST_CASE("a node that is held stays without blocks, and its parents with it") {
  PrefixCache cache(2, {3});
  const NodeId first = insert(&cache, kNoNode, -1, range(0, 2), 2, 0);
  const NodeId second = insert(&cache, first, -1, range(2, 2), 2, kNoBlock);
  cache.hold(second);
  cache.hold(second);
  cache.become_idle(0);
  CHECK(cache.evict() == 0);
  cache.let_go(second);
  check(cache);
  CHECK(cache.num_nodes() == 2);
  cache.let_go(second);
  CHECK(cache.num_nodes() == 0);
  check(cache);
  CHECK_THROWS_AS(insert(&cache, kNoNode, -1, range(0, 1), 1, kNoBlock), CheckFailure);  // not full, and no block
}

TEST_CASE("blocks known by their first tokens move to the node that has all of them") {
  PrefixCache cache(4);
  const NodeId part = insert(&cache, kNoNode, -1, range(0, 2), 2, 0);
  NodeId full = insert(&cache, kNoNode, -1, range(0, 4), 4, 1);
  const NodeId behind = insert(&cache, full, -1, range(4, 4), 4, 2);
  CHECK(insert(&cache, kNoNode, -1, range(0, 4), 4, 0) == full);
  CHECK(cache.block(part, 0) == 0);  // the other one has its place
  for (const BlockId block : {2, 1}) cache.become_idle(block);
  cache.hold(behind);
  for (const BlockId block : {2, 1}) CHECK(cache.evict() == block);
  CHECK(insert(&cache, kNoNode, -1, range(0, 4), 4, 0) == full);
  CHECK(cache.block(full, 0) == 0);
  CHECK(cache.num_nodes() == 2);
  check(cache);
}

TEST_CASE("a wanted block that is not full moves to the host with its tokens, and its node gets no others") {
  PrefixCache cache(4, {0}, 2);
  cache.keep_evicted(true);
  const NodeId first = insert(&cache, kNoNode, -1, range(0, 4), 4, 0);
  const NodeId part = insert(&cache, first, -1, range(4, 2), 2, 1);
  cache.want(part, 6);
  CHECK(insert(&cache, first, -1, range(4, 3), 3, 1) == part);  // whoever has the block goes on
  cache.become_idle(1);
  CHECK(cache.evict() == 1);
  check(cache);
  CHECK(cache.block(part, 0) == kNoBlock);
  CHECK(cache.host_block(part, 0) != kNoBlock);
  CHECK(cache.host_block(first, 0) == kNoBlock);
  CHECK_THROWS_AS(cache.put_back(part, 0, 2), CheckFailure);
  // It is found, by what it holds.
  CHECK(cache.find(first, -1, range(4, 2)).ready_node == part);
  CHECK(cache.find(first, -1, range(4, 4)).num_ready_tokens == 3);
  CHECK(insert(&cache, first, -1, range(4, 4), 4, 2) != part);
  std::vector<BlockCopy> out;
  cache.take_swaps_out(&out);
  REQUIRE(out.size() == 1);
  CHECK(out[0].from == 1);
  CHECK(out[0].to == cache.host_block(part, 0));
  cache.unwant(part, 6);
  check(cache);
  CHECK(cache.num_free_host_blocks() == 2);
  CHECK(cache.num_nodes() == 2);
}

TEST_CASE("a node that two layer groups hold parts of gets no tokens more once one of them is on the host") {
  PrefixCache cache(4, {0, 3}, 1);
  cache.keep_evicted(true);
  const BlockId blocks[] = {0, 1};
  const NodeId part = cache.insert(kNoNode, -1, range(0, 2), 2, blocks);
  cache.want(part, 2);
  cache.become_idle(0);
  CHECK(cache.evict() == 0);
  const BlockId left[] = {kNoBlock, 1};
  const NodeId grown = cache.insert(kNoNode, -1, range(0, 3), 3, left);
  CHECK(grown != part);
  CHECK(cache.block(grown, 1) == 1);
  CHECK(cache.host_block(part, 0) != kNoBlock);
  check(cache);
  cache.unwant(part, 2);
  CHECK(cache.num_nodes() == 1);
  check(cache);
}

}  // namespace llmb::test
