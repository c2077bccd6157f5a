#include "cache/block_allocator.h"

#include <doctest/doctest.h>

#include <set>
#include <vector>

#include "tests/support/workload.h"

namespace llmb {

namespace {

// Gives back what it does not use, the newest first, then what it uses.
struct Borrower : BlockBorrower {
  BlockId give_back(bool even_used) override {
    std::vector<BlockId>& from = unused.empty() ? used : unused;
    if (from.empty() || (unused.empty() && !even_used)) return kNoBlock;
    const BlockId block = from.back();
    from.pop_back();
    return block;
  }
  std::vector<BlockId> unused, used;
};

}  // namespace

TEST_CASE("a new allocator hands out every block once, then says no and changes nothing") {
  BlockAllocator allocator(5);
  std::vector<BlockId> blocks;
  CHECK(allocator.allocate(0, &blocks));
  CHECK(allocator.allocate(4, &blocks));
  CHECK_FALSE(allocator.allocate(2, &blocks));  // one more than there are: all or nothing
  CHECK(blocks == std::vector<BlockId>{0, 1, 2, 3});
  CHECK(allocator.num_free() == 1);
  CHECK(allocator.allocate(1, &blocks));
  CHECK_FALSE(allocator.allocate(1, &blocks));
  CHECK(blocks == std::vector<BlockId>{0, 1, 2, 3, 4});
  CHECK(allocator.check_integrity().ok());
}

TEST_CASE("a shared block is free again after its last release, the block freed last is used first") {
  BlockAllocator allocator(3);
  std::vector<BlockId> blocks;
  REQUIRE(allocator.allocate(3, &blocks));
  allocator.share(1);
  CHECK(allocator.num_references(1) == 2);
  allocator.release(1);
  CHECK(allocator.num_free() == 0);
  allocator.release(1);
  allocator.release(2);
  CHECK(allocator.num_free() == 2);
  blocks.clear();
  REQUIRE(allocator.allocate(2, &blocks));
  CHECK(blocks == std::vector<BlockId>{2, 1});
}

TEST_CASE("double release, sharing a free block and unknown ids throw and change nothing") {
  BlockAllocator allocator(2);
  std::vector<BlockId> blocks;
  REQUIRE(allocator.allocate(1, &blocks));
  allocator.release(0);
  CHECK_THROWS_AS(allocator.release(0), CheckFailure);
  CHECK_THROWS_AS(allocator.share(0), CheckFailure);
  CHECK_THROWS_AS(allocator.release(-1), CheckFailure);
  CHECK_THROWS_AS(allocator.release(2), CheckFailure);
  CHECK_THROWS_AS((void)allocator.allocate(-1, &blocks), CheckFailure);
  CHECK_THROWS_AS(BlockAllocator(-1), CheckFailure);
  CHECK(allocator.num_free() == 2);
  CHECK(allocator.check_integrity().ok());
}

TEST_CASE("an empty pool is valid and full") {
  BlockAllocator allocator(0);
  std::vector<BlockId> blocks;
  CHECK_FALSE(allocator.allocate(1, &blocks));
  CHECK(allocator.check_integrity().ok());
}

TEST_CASE("what the cache keeps counts as free, is handed out last, and can be shared until then") {
  PrefixCache cache(1);
  BlockAllocator allocator(3, &cache);
  std::vector<BlockId> blocks;
  REQUIRE(allocator.allocate(2, &blocks));
  cache.insert(kNoNode, -1, std::vector<TokenId>{7}, 1, std::vector<BlockId>{0});
  allocator.release(0);
  allocator.release(1);
  CHECK(allocator.num_free() == 3);
  CHECK(cache.num_idle() == 1);
  allocator.share(0);
  CHECK(allocator.num_references(0) == 1);
  CHECK(allocator.num_free() == 2);
  allocator.release(0);
  blocks.clear();
  REQUIRE(allocator.allocate(3, &blocks));
  CHECK(blocks == std::vector<BlockId>{1, 2, 0});
  CHECK_FALSE(cache.holds(0));
  allocator.release(0);
  CHECK_THROWS_AS(allocator.share(0), CheckFailure);
  CHECK(allocator.check_integrity().ok());
}

TEST_CASE("random operations agree with a brute-force model") {
  test::TestRng rng(1);
  for (int round = 0; round < 200; ++round) {
    const int32_t num_blocks = rng.between(1, 20);
    PrefixCache cache(1);
    BlockAllocator allocator(num_blocks, round % 2 == 0 ? nullptr : &cache);
    Borrower borrower;
    if (round % 3 == 0) allocator.set_borrower(&borrower);
    std::multiset<BlockId> references;  // one entry a reference
    for (int i = 0; i < 200; ++i) {
      const BlockId block = rng.between(0, num_blocks - 1);
      if (round % 3 == 0 && rng.chance(0.2)) {
        std::vector<BlockId>& some = rng.chance(0.5) ? borrower.unused : borrower.used;
        allocator.allow_loans(rng.between(0, 3));
        if (rng.chance(0.5)) allocator.lend(rng.between(0, 3), &some);
        else if (!some.empty()) allocator.take_back(some.back()), some.pop_back();
        REQUIRE(allocator.num_lent() == static_cast<int32_t>(borrower.used.size() + borrower.unused.size()));
        for (const auto* lent : {&borrower.used, &borrower.unused})
          for (const BlockId b : *lent) REQUIRE((references.count(b) == 0 && !cache.holds(b)));
      } else if (rng.chance(0.3)) {
        const int32_t count = rng.between(0, 4);
        const std::set<BlockId> used(references.begin(), references.end());
        std::vector<BlockId> blocks;
        const bool fits = count <= num_blocks - static_cast<int32_t>(used.size());
        REQUIRE(allocator.allocate(count, &blocks) == fits);
        REQUIRE(blocks.size() == static_cast<size_t>(fits ? count : 0));
        for (const BlockId b : blocks) REQUIRE(references.count(b) == 0);
        references.insert(blocks.begin(), blocks.end());
      } else if (cache.is_idle(block)) {
        allocator.share(block);
        references.insert(block);
      } else if (references.count(block) > 0) {
        if (round % 2 == 1 && rng.chance(0.3)) cache.insert(kNoNode, -1, std::vector<TokenId>{block}, 1, {&block, 1});
        if (rng.chance(0.4)) {
          allocator.share(block);
          references.insert(block);
        } else {
          allocator.release(block);
          references.erase(references.find(block));
        }
      }
      for (BlockId b = 0; b < num_blocks; ++b)
        REQUIRE(allocator.num_references(b) == static_cast<int32_t>(references.count(b)));
      const Status status = allocator.check_integrity();
      REQUIRE_MESSAGE(status.ok(), status.message());
    }
  }
}

TEST_CASE("lent blocks count as free: unused ones are handed out before idle ones, used ones when no other is left") {
  PrefixCache cache(1);
  BlockAllocator allocator(6, &cache);
  Borrower borrower;
  std::vector<BlockId> blocks;
  allocator.lend(6, &blocks);
  CHECK(blocks.empty());  // it may not
  REQUIRE(allocator.allocate(2, &blocks));
  cache.insert(kNoNode, -1, std::vector<TokenId>{7}, 1, std::vector<BlockId>{0});
  allocator.release(0);
  allocator.set_borrower(&borrower);
  allocator.allow_loans(3);
  allocator.lend(1, &borrower.unused);
  allocator.lend(5, &borrower.used);
  CHECK(borrower.unused == std::vector<BlockId>{2});
  CHECK(borrower.used == std::vector<BlockId>{3, 4});
  CHECK(allocator.num_lent() == 3);
  CHECK(allocator.num_free() == 5);
  CHECK(allocator.num_unlent() == 2);
  CHECK(allocator.num_unused() == 1);
  REQUIRE(allocator.check_integrity().ok());
  blocks.clear();
  CHECK_FALSE(allocator.allocate(6, &blocks));
  REQUIRE(allocator.allocate(5, &blocks));
  CHECK(blocks == std::vector<BlockId>{5, 2, 0, 4, 3});
  CHECK(allocator.num_lent() == 0);
  CHECK_THROWS_AS(allocator.take_back(3), CheckFailure);
  allocator.release(5);
  allocator.allow_loans(9);
  allocator.lend(9, &borrower.used);
  CHECK(borrower.used == std::vector<BlockId>{5});
  allocator.take_back(5);
  CHECK_THROWS_AS(allocator.take_back(5), CheckFailure);
  CHECK(allocator.num_unused() == 1);
  CHECK(allocator.check_integrity().ok());
}

TEST_CASE("idle blocks are lent, but for those that a preempted sequence wants back") {
  PrefixCache cache(1, {0}, /*num_host_blocks=*/2);
  BlockAllocator allocator(2, &cache);
  Borrower borrower;
  allocator.set_borrower(&borrower);
  std::vector<BlockId> blocks;
  REQUIRE(allocator.allocate(2, &blocks));
  const NodeId first = cache.insert(kNoNode, -1, std::vector<TokenId>{7}, 1, std::vector<BlockId>{0});
  cache.insert(kNoNode, -1, std::vector<TokenId>{8}, 1, std::vector<BlockId>{1});
  allocator.release(1);
  allocator.release(0);
  cache.want(first, 1);
  allocator.allow_loans(2);
  allocator.lend(2, &borrower.used);
  CHECK(borrower.used == std::vector<BlockId>{1});  // the older one
  CHECK_FALSE(cache.has_swaps_out());
  // Nor is it moved to the host for others while there is a lent one.
  cache.keep_evicted(true);
  blocks.clear();
  REQUIRE(allocator.allocate(1, &blocks));
  CHECK(blocks == std::vector<BlockId>{1});
  CHECK_FALSE(cache.has_swaps_out());
  REQUIRE(allocator.allocate(1, &blocks));
  CHECK(cache.has_swaps_out());
  CHECK(allocator.check_integrity().ok());
}

TEST_CASE("with enough idle blocks in the cache the oldest of them is used again, before blocks that never were") {
  PrefixCache cache(1);
  BlockAllocator allocator(8, &cache, /*max_idle=*/2);
  std::vector<BlockId> blocks;
  for (TokenId token = 0; token < 5; ++token) {
    blocks.clear();
    REQUIRE(allocator.allocate(1, &blocks));
    CHECK(blocks[0] == (token < 2 ? token : token - 2 * (token / 2)));  // 0, 1, then these again, the older one first
    cache.insert(kNoNode, -1, std::vector<TokenId>{token}, 1, blocks);
    allocator.release(blocks[0]);
    CHECK(cache.num_idle() == std::min(token + 1, 2));
    CHECK(allocator.num_free() == 8);
    REQUIRE(allocator.check_integrity().ok());
  }
  blocks.clear();
  REQUIRE(allocator.allocate(8, &blocks));
  CHECK(cache.num_idle() == 0);
  CHECK(!allocator.allocate(1, &blocks));
}

}  // namespace llmb
