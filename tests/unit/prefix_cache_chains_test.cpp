// The tree of cached blocks against a list of them that is searched from one end to the other.
// LLMB_NUM_WORKLOADS: how many random pools.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <vector>

#include "cache/prefix_cache.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

namespace {

using Tokens = std::vector<TokenId>;

int32_t common(const Tokens& a, const Tokens& b) {
  size_t i = 0;
  while (i < a.size() && i < b.size() && a[i] == b[i]) ++i;
  return static_cast<int32_t>(i);
}

void check(const PrefixCache& cache) {
  const Status status = cache.check_integrity();
  REQUIRE_MESSAGE(status.ok(), status.message());
}

// A pool of blocks whose holders are chains. It keeps its own list of which blocks are cached.
class Pool {
 public:
  Pool(uint64_t seed, int32_t num_blocks, int32_t block_size, int32_t num_words)
      : rng_(seed), block_size_(block_size), num_words_(num_words), cache_(block_size), references_(num_blocks) {
    for (BlockId block = num_blocks - 1; block >= 0; --block) free_.push_back(block);
  }

  void step() {
    if (!chains_.empty() && rng_.chance(0.4)) give_back();
    else if (!chains_.empty() && rng_.chance(0.4)) grow();
    else begin();
    if (rng_.chance(0.3)) {
      cache_.make_ready();
      for (auto& [node, known] : known_) known.num_ready = static_cast<int32_t>(known.tokens.size());
    }
    look();
    check(cache_);
    CHECK(cache_.num_idle() == std::count_if(known_.begin(), known_.end(), [&](const auto& item) {
            return references_[cache_.block(item.first, 0)] == 0;
          }));
    CHECK(cache_.num_nodes() == static_cast<int32_t>(known_.size()));
  }
  int64_t num_evictions() const { return cache_.num_evictions(); }
  int64_t num_shared() const { return num_shared_; }
  int64_t num_waits() const { return num_waits_; }

 private:
  struct Known {
    NodeId parent;
    int32_t adapter;
    Tokens tokens;
    int32_t num_ready;
    int64_t idle_since;
  };
  struct Chain {
    int32_t adapter;
    std::vector<NodeId> nodes;
  };

  Tokens words(int32_t count) {
    Tokens tokens(count);
    for (TokenId& token : tokens) token = rng_.between(0, num_words_ - 1);
    return tokens;
  }
  int32_t adapter() { return rng_.between(-1, 0); }

  PrefixCache::Match expected(NodeId parent, int32_t adapter, const Tokens& tokens) const {
    PrefixCache::Match match;
    for (const auto& [node, known] : known_) {
      if (known.parent != parent || known.adapter != adapter) continue;
      match.num_tokens = std::max(match.num_tokens, common(tokens, known.tokens));
    }
    return match;
  }

  void look() {
    NodeId parent = kNoNode;
    const int32_t with = adapter();
    for (int32_t depth = 0; depth < 4; ++depth) {
      const Tokens tokens = words(rng_.between(0, block_size_));
      const PrefixCache::Match match = find(parent, with, tokens);
      if (match.num_tokens < block_size_) return;
      parent = match.node;
    }
  }

  // find(), compared with the list.
  PrefixCache::Match find(NodeId parent, int32_t with, const Tokens& tokens) {
    const PrefixCache::Match match = cache_.find(parent, with, tokens);
    REQUIRE(match.num_tokens == expected(parent, with, tokens).num_tokens);
    REQUIRE((match.node == kNoNode) == (match.num_tokens == 0));
    if (match.num_tokens > 0) {
      const Known& known = known_.at(match.node);
      REQUIRE(known.parent == parent);
      REQUIRE(known.adapter == with);
      REQUIRE(common(known.tokens, tokens) == match.num_tokens);
    }
    REQUIRE(match.num_ready_tokens <= match.num_tokens);
    if (match.num_ready_tokens > 0) {
      const Known& known = known_.at(match.ready_node);
      REQUIRE(known.parent == parent);
      REQUIRE(known.adapter == with);
      REQUIRE(std::min(known.num_ready, common(known.tokens, tokens)) == match.num_ready_tokens);
    }
    if (match.node != kNoNode && known_.at(match.node).num_ready >= match.num_tokens)
      REQUIRE(match.num_ready_tokens == match.num_tokens);
    num_waits_ += match.num_ready_tokens < match.num_tokens;
    return match;
  }

  void reference(BlockId block) {
    if (references_[block]++ == 0 && cache_.holds(block)) cache_.reuse(block);
  }

  // Finds what is there of a random text, computes the rest.
  void begin() {
    Chain chain{adapter(), {}};
    for (int32_t depth = 0; depth < 3; ++depth) {
      const Tokens tokens = words(block_size_);
      const NodeId parent = chain.nodes.empty() ? kNoNode : chain.nodes.back();
      const PrefixCache::Match match = find(parent, chain.adapter, tokens);
      if (match.num_tokens < block_size_) break;
      reference(cache_.block(match.node, 0));
      chain.nodes.push_back(match.node);
      ++num_shared_;
    }
    chains_.push_back(chain);
    extend(&chains_.back());
  }

  void grow() { extend(&chains_[rng_.between(0, static_cast<int32_t>(chains_.size()) - 1)]); }

  // A block more, or more tokens in the last one.
  void extend(Chain* chain) {
    if (!chain->nodes.empty()) {
      const NodeId last = chain->nodes.back();
      const BlockId last_block = cache_.block(last, 0);
      if (const auto size = static_cast<int32_t>(known_.at(last).tokens.size()); size < block_size_) {
        // Blocks that others copied from, too, go on with one owner only.
        if (references_[last_block] > 1) return;
        Tokens tokens = known_.at(last).tokens;
        const Tokens more = words(rng_.between(1, block_size_ - size));
        tokens.insert(tokens.end(), more.begin(), more.end());
        const NodeId parent = known_.at(last).parent;
        insert(parent, chain->adapter, tokens, rng_.between(size, static_cast<int32_t>(tokens.size())), last_block, chain);
        return;
      }
    }
    const NodeId parent = chain->nodes.empty() ? kNoNode : chain->nodes.back();
    const BlockId block = allocate();
    if (block == kNoBlock) return;
    const Tokens tokens = words(rng_.chance(0.6) ? block_size_ : rng_.between(1, block_size_));
    chain->nodes.push_back(kNoNode);
    insert(parent, chain->adapter, tokens, rng_.between(0, static_cast<int32_t>(tokens.size())), block, chain);
  }

  // `block` is the chain's last. Where another has these tokens the chain takes that one.
  void insert(NodeId parent, int32_t with, const Tokens& tokens, int32_t num_ready, BlockId block, Chain* chain) {
    const int32_t num_same = expected(parent, with, tokens).num_tokens;
    const NodeId before = chain->nodes.back();
    const NodeId held = cache_.insert(parent, with, tokens, num_ready, {&block, 1});
    chain->nodes.pop_back();
    if (num_same < static_cast<int32_t>(tokens.size())) {
      REQUIRE(cache_.block(held, 0) == block);
      REQUIRE((before == kNoNode || before == held));
      known_[held] = {parent, with, tokens, num_ready, 0};
      chain->nodes.push_back(held);
      return;
    }
    REQUIRE(cache_.block(held, 0) != block);
    REQUIRE(common(known_.at(held).tokens, tokens) == num_same);
    release(block);
    if (known_.at(held).tokens.size() == tokens.size()) {
      reference(cache_.block(held, 0));
      chain->nodes.push_back(held);
    }
  }

  bool is_idle(NodeId node) const { return references_[cache_.block(node, 0)] == 0; }

  BlockId allocate() {
    if (free_.empty()) {
      const auto oldest = std::min_element(known_.begin(), known_.end(), [&](const auto& a, const auto& b) {
        if (is_idle(a.first) != is_idle(b.first)) return is_idle(a.first);
        return a.second.idle_since < b.second.idle_since;
      });
      if (oldest == known_.end() || !is_idle(oldest->first)) {
        REQUIRE(cache_.num_idle() == 0);
        return kNoBlock;
      }
      for (const auto& [node, known] : known_) REQUIRE(known.parent != oldest->first);  // a leaf
      const BlockId block = cache_.block(oldest->first, 0);
      REQUIRE(cache_.evict() == block);
      known_.erase(oldest);
      free_.push_back(block);
    }
    const BlockId block = free_.back();
    free_.pop_back();
    references_[block] = 1;
    return block;
  }

  void release(BlockId block) {
    if (--references_[block] > 0) return;
    if (!cache_.holds(block)) return free_.push_back(block);
    cache_.become_idle(block);
    for (auto& [node, known] : known_)
      if (cache_.block(node, 0) == block) known.idle_since = now_ + 1;
    ++now_;
  }

  void give_back() {
    const auto at = chains_.begin() + rng_.between(0, static_cast<int32_t>(chains_.size()) - 1);
    for (; !at->nodes.empty(); at->nodes.pop_back()) release(cache_.block(at->nodes.back(), 0));
    chains_.erase(at);
  }

  TestRng rng_;
  const int32_t block_size_, num_words_;
  PrefixCache cache_;
  std::vector<int32_t> references_;
  std::vector<BlockId> free_;
  std::map<NodeId, Known> known_;
  std::vector<Chain> chains_;
  int64_t now_ = 0, num_shared_ = 0, num_waits_ = 0;
};

}  // namespace

TEST_CASE("random chains on small pools: every search, insertion and eviction as in a list of all blocks") {
  const char* text = std::getenv("LLMB_NUM_WORKLOADS");
  const int64_t num_pools = text ? std::strtoll(text, nullptr, 10) : 1500;
  int64_t num_evictions = 0, num_shared = 0, num_waits = 0;
  for (int64_t seed = 1; seed <= num_pools; ++seed) {
    TestRng rng(static_cast<uint64_t>(seed));
    Pool pool(rng.next(), rng.log_between(1, 60), rng.between(1, 5), rng.between(1, 3));
    for (int32_t i = 0; i < 120; ++i) pool.step();
    num_evictions += pool.num_evictions();
    num_shared += pool.num_shared();
    num_waits += pool.num_waits();
  }
  MESSAGE(num_pools << " pools: " << num_evictions << " evictions, " << num_shared << " blocks shared, " << num_waits
                    << " searches that found more than lies in memory");
  CHECK(num_evictions > num_pools);
  CHECK(num_shared > num_pools);
  CHECK(num_waits > num_pools);
}

}  // namespace llmb::test
