// The tree of cached blocks against a list of them that is searched from one end to the other.
#include "cache/prefix_cache.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "base/check.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

namespace {

using Tokens = std::vector<TokenId>;

Tokens range(TokenId first, int32_t count) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

int32_t common(const Tokens& a, const Tokens& b) {
  size_t i = 0;
  while (i < a.size() && i < b.size() && a[i] == b[i]) ++i;
  return static_cast<int32_t>(i);
}

BlockId evict(PrefixCache* cache) {
  std::vector<BlockId> evicted;
  cache->evict(&evicted);
  REQUIRE(evicted.size() == 1);
  return evicted[0];
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
      for (auto& [block, known] : known_) known.num_ready = static_cast<int32_t>(known.tokens.size());
    }
    look();
    check(cache_);
    CHECK(cache_.num_idle() ==
          std::count_if(known_.begin(), known_.end(), [&](const auto& item) { return references_[item.first] == 0; }));
  }
  int64_t num_evictions() const { return cache_.num_evictions(); }
  int64_t num_shared() const { return num_shared_; }
  int64_t num_waits() const { return num_waits_; }

 private:
  struct Known {
    BlockId parent;
    int32_t adapter;
    Tokens tokens;
    int32_t num_ready;
    int64_t idle_since;
  };
  struct Chain {
    int32_t adapter;
    std::vector<BlockId> blocks;
  };

  Tokens words(int32_t count) {
    Tokens tokens(count);
    for (TokenId& token : tokens) token = rng_.between(0, num_words_ - 1);
    return tokens;
  }
  int32_t adapter() { return rng_.between(-1, 0); }

  PrefixCache::Match expected(BlockId parent, int32_t adapter, const Tokens& tokens) const {
    PrefixCache::Match match;
    for (const auto& [block, known] : known_) {
      if (known.parent != parent || known.adapter != adapter) continue;
      match.num_tokens = std::max(match.num_tokens, common(tokens, known.tokens));
    }
    return match;
  }

  void look() {
    BlockId parent = kNoBlock;
    const int32_t with = adapter();
    for (int32_t depth = 0; depth < 4; ++depth) {
      const Tokens tokens = words(rng_.between(0, block_size_));
      const PrefixCache::Match match = find(parent, with, tokens);
      if (match.num_tokens < block_size_) return;
      parent = match.block;
    }
  }

  // find(), compared with the list.
  PrefixCache::Match find(BlockId parent, int32_t with, const Tokens& tokens) {
    const PrefixCache::Match match = cache_.find(parent, with, tokens);
    REQUIRE(match.num_tokens == expected(parent, with, tokens).num_tokens);
    REQUIRE((match.block == kNoBlock) == (match.num_tokens == 0));
    if (match.num_tokens > 0) {
      const Known& known = known_.at(match.block);
      REQUIRE(known.parent == parent);
      REQUIRE(known.adapter == with);
      REQUIRE(common(known.tokens, tokens) == match.num_tokens);
    }
    REQUIRE(match.num_ready_tokens <= match.num_tokens);
    if (match.num_ready_tokens > 0) {
      const Known& known = known_.at(match.ready_block);
      REQUIRE(known.parent == parent);
      REQUIRE(known.adapter == with);
      REQUIRE(std::min(known.num_ready, common(known.tokens, tokens)) == match.num_ready_tokens);
    }
    if (match.block != kNoBlock && known_.at(match.block).num_ready >= match.num_tokens)
      REQUIRE(match.num_ready_tokens == match.num_tokens);
    num_waits_ += match.num_ready_tokens < match.num_tokens;
    return match;
  }

  void reference(BlockId block) {
    if (references_[block]++ == 0 && known_.contains(block)) cache_.reuse(block);
  }

  // Finds what is there of a random text, computes the rest.
  void begin() {
    Chain chain{adapter(), {}};
    for (int32_t depth = 0; depth < 3; ++depth) {
      const Tokens tokens = words(block_size_);
      const BlockId parent = chain.blocks.empty() ? kNoBlock : chain.blocks.back();
      const PrefixCache::Match match = find(parent, chain.adapter, tokens);
      if (match.num_tokens < block_size_) break;
      reference(match.block);
      chain.blocks.push_back(match.block);
      ++num_shared_;
    }
    chains_.push_back(chain);
    extend(&chains_.back());
  }

  void grow() { extend(&chains_[rng_.between(0, static_cast<int32_t>(chains_.size()) - 1)]); }

  // A block more, or more tokens in the last one.
  void extend(Chain* chain) {
    if (!chain->blocks.empty()) {
      const BlockId last = chain->blocks.back();
      if (const auto size = static_cast<int32_t>(known_.at(last).tokens.size()); size < block_size_) {
        // Blocks that others copied from, too, go on with one owner only.
        if (references_[last] > 1) return;
        Tokens tokens = known_.at(last).tokens;
        const Tokens more = words(rng_.between(1, block_size_ - size));
        tokens.insert(tokens.end(), more.begin(), more.end());
        const BlockId parent = known_.at(last).parent;
        insert(parent, chain->adapter, tokens, rng_.between(size, static_cast<int32_t>(tokens.size())), last, chain);
        return;
      }
    }
    const BlockId parent = chain->blocks.empty() ? kNoBlock : chain->blocks.back();
    const BlockId block = allocate();
    if (block == kNoBlock) return;
    const Tokens tokens = words(rng_.chance(0.6) ? block_size_ : rng_.between(1, block_size_));
    chain->blocks.push_back(block);
    insert(parent, chain->adapter, tokens, rng_.between(0, static_cast<int32_t>(tokens.size())), block, chain);
  }

  // `block` is the chain's last. Where another has these tokens the chain takes that one.
  void insert(BlockId parent, int32_t with, const Tokens& tokens, int32_t num_ready, BlockId block, Chain* chain) {
    const int32_t num_same = expected(parent, with, tokens).num_tokens;
    const BlockId held = cache_.insert(parent, with, tokens, num_ready, block);
    if (num_same < static_cast<int32_t>(tokens.size())) {
      REQUIRE(held == block);
      known_[block] = {parent, with, tokens, num_ready, 0};
      return;
    }
    REQUIRE(held != block);
    REQUIRE(common(known_.at(held).tokens, tokens) == num_same);
    chain->blocks.pop_back();
    release(block);
    if (known_.at(held).tokens.size() == tokens.size()) {
      reference(held);
      chain->blocks.push_back(held);
    }
  }

  BlockId allocate() {
    if (free_.empty()) {
      const auto oldest = std::min_element(known_.begin(), known_.end(), [&](const auto& a, const auto& b) {
        const bool a_idle = references_[a.first] == 0, b_idle = references_[b.first] == 0;
        return a_idle != b_idle ? a_idle : a.second.idle_since < b.second.idle_since;
      });
      if (oldest == known_.end() || references_[oldest->first] > 0) {
        REQUIRE(cache_.num_idle() == 0);
        return kNoBlock;
      }
      for (const auto& [block, known] : known_) REQUIRE(known.parent != oldest->first);  // a leaf
      const BlockId block = evict(&cache_);
      REQUIRE(block == oldest->first);
      known_.erase(block);
      free_.push_back(block);
    }
    const BlockId block = free_.back();
    free_.pop_back();
    references_[block] = 1;
    return block;
  }

  void release(BlockId block) {
    if (--references_[block] > 0) return;
    if (!known_.contains(block)) return free_.push_back(block);
    cache_.become_idle(block);
    known_.at(block).idle_since = ++now_;
  }

  void give_back() {
    const auto at = chains_.begin() + rng_.between(0, static_cast<int32_t>(chains_.size()) - 1);
    for (; !at->blocks.empty(); at->blocks.pop_back()) release(at->blocks.back());
    chains_.erase(at);
  }

  TestRng rng_;
  const int32_t block_size_, num_words_;
  PrefixCache cache_;
  std::vector<int32_t> references_;
  std::vector<BlockId> free_;
  std::map<BlockId, Known> known_;
  std::vector<Chain> chains_;
  int64_t now_ = 0, num_shared_ = 0, num_waits_ = 0;
};

}  // namespace

TEST_CASE("blocks are found by their tokens and by what stands before them") {
  PrefixCache cache(4);
  CHECK(cache.find(kNoBlock, -1, range(0, 4)).block == kNoBlock);
  CHECK(cache.insert(kNoBlock, -1, range(0, 4), 4, 7) == 7);
  CHECK(cache.insert(7, -1, range(4, 4), 4, 3) == 3);
  const PrefixCache::Match match = cache.find(7, -1, range(4, 4));
  CHECK(match.block == 3);
  CHECK(match.num_tokens == 4);
  CHECK(match.num_ready_tokens == 4);
  CHECK(cache.find(kNoBlock, -1, range(4, 4)).num_tokens == 0);  // the same tokens elsewhere
  CHECK(cache.find(kNoBlock, 0, range(0, 4)).num_tokens == 0);   // of another adapter
  CHECK(cache.find(3, -1, range(0, 4)).num_tokens == 0);
  CHECK(cache.find(kNoBlock, -1, {}).num_tokens == 0);
  check(cache);
}

TEST_CASE("the longest common beginning is found among many blocks, none to block_size tokens long") {
  PrefixCache cache(4);
  BlockId block = 0;
  for (const Tokens& tokens : {Tokens{1, 2, 3, 4}, Tokens{1, 2, 5, 6}, Tokens{1, 2}, Tokens{9}, Tokens{1, 3, 3, 3}})
    cache.insert(kNoBlock, -1, tokens, static_cast<int32_t>(tokens.size()), block++);
  const auto longest = [&](const Tokens& tokens) {
    const PrefixCache::Match match = cache.find(kNoBlock, -1, tokens);
    CHECK(match.num_tokens == match.num_ready_tokens);
    return std::pair(match.num_tokens > 0 ? match.block : kNoBlock, match.num_tokens);
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
  CHECK(cache.insert(kNoBlock, -1, range(0, 4), 4, 0) == 0);
  CHECK(cache.insert(kNoBlock, -1, range(0, 4), 4, 1) == 0);
  CHECK(cache.insert(kNoBlock, -1, range(0, 3), 3, 2) == 0);
  CHECK(cache.holds(0));
  CHECK_FALSE(cache.holds(1));
  CHECK_FALSE(cache.holds(2));
  CHECK(cache.insert(kNoBlock, 5, range(0, 4), 4, 1) == 1);  // of another adapter
  check(cache);
}

TEST_CASE("a block that is not full grows where it stands") {
  PrefixCache cache(4);
  CHECK(cache.insert(kNoBlock, -1, range(0, 2), 2, 0) == 0);
  CHECK(cache.insert(kNoBlock, -1, range(0, 2), 2, 0) == 0);
  CHECK_THROWS_AS(cache.insert(0, -1, range(4, 4), 4, 1), CheckFailure);  // nothing stands behind it yet
  CHECK(cache.insert(kNoBlock, -1, range(0, 4), 3, 0) == 0);
  CHECK(cache.find(kNoBlock, -1, range(0, 4)).num_tokens == 4);
  CHECK(cache.find(kNoBlock, -1, range(0, 4)).num_ready_tokens == 3);
  cache.make_ready();
  CHECK(cache.find(kNoBlock, -1, range(0, 4)).num_ready_tokens == 4);
  CHECK(cache.insert(0, -1, range(4, 4), 4, 1) == 1);
  check(cache);
}

TEST_CASE("idle blocks are forgotten oldest first, leaves before their parents, and used again until then") {
  PrefixCache cache(2);
  for (BlockId block = 0; block < 3; ++block) cache.insert(block - 1, -1, range(0, 2), 2, block);  // a chain
  cache.insert(0, -1, range(8, 2), 2, 3);
  CHECK_THROWS_AS(evict(&cache), CheckFailure);
  for (const BlockId block : {3, 2, 1, 0}) cache.become_idle(block);
  check(cache);
  CHECK(cache.num_idle() == 4);
  CHECK_THROWS_AS(cache.become_idle(0), CheckFailure);
  CHECK_THROWS_AS(cache.insert(0, -1, range(5, 2), 2, 4), CheckFailure);  // behind an idle block
  cache.reuse(0);
  cache.reuse(3);
  check(cache);
  cache.become_idle(3);
  cache.become_idle(0);
  for (const BlockId block : {2, 1, 3, 0}) {
    CHECK(evict(&cache) == block);
    check(cache);
  }
  CHECK(cache.num_idle() == 0);
  CHECK(cache.find(kNoBlock, -1, range(0, 2)).num_tokens == 0);
}

TEST_CASE("blocks of other groups stand beside the first group's, and go with it or before it") {
  PrefixCache cache(2, 3);
  cache.insert(kNoBlock, -1, range(0, 2), 2, 0);
  cache.insert(0, -1, range(2, 2), 2, 1);
  CHECK(cache.beside(0, 0) == 0);
  CHECK(cache.beside(0, 1) == kNoBlock);
  CHECK(cache.put_beside(0, 1, 5) == 5);
  CHECK(cache.put_beside(0, 1, 5) == 5);
  CHECK(cache.put_beside(0, 1, 6) == 5);
  CHECK(cache.put_beside(0, 2, 7) == 7);
  CHECK(cache.put_beside(1, 2, 8) == 8);
  CHECK(cache.put_beside(1, 1, 5) == kNoBlock);  // which stands beside another
  CHECK_FALSE(cache.holds(6));
  CHECK_THROWS_AS(cache.put_beside(5, 1, 9), CheckFailure);  // no block of the first group
  CHECK_THROWS_AS(cache.put_beside(0, 1, 1), CheckFailure);
  CHECK_THROWS_AS(cache.put_beside(0, 3, 9), CheckFailure);
  check(cache);
  for (const BlockId block : {5, 8, 1, 0}) cache.become_idle(block);
  check(cache);
  CHECK(evict(&cache) == 5);  // a window went past it before
  CHECK(cache.beside(0, 1) == kNoBlock);
  cache.reuse(8);
  CHECK(evict(&cache) == 1);  // 8 is in use: its owner keeps it
  CHECK_FALSE(cache.holds(8));
  CHECK_THROWS_AS(cache.put_beside(0, 1, 8), CheckFailure);  // behind an idle block
  check(cache);
}

TEST_CASE("what stands beside an evicted block is evicted with it, where it is idle") {
  PrefixCache cache(2, 3);
  cache.insert(kNoBlock, -1, range(0, 2), 2, 4);
  cache.put_beside(4, 1, 5);
  cache.put_beside(4, 2, 6);
  for (const BlockId block : {4, 6}) cache.become_idle(block);
  std::vector<BlockId> evicted;
  cache.evict(&evicted);
  CHECK(evicted == std::vector<BlockId>{4, 6});
  CHECK(cache.num_idle() == 0);
  CHECK(cache.num_evictions() == 2);
  for (const BlockId block : {4, 5, 6}) CHECK_FALSE(cache.holds(block));
  check(cache);
}

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
