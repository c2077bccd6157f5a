#include "cache/block_table.h"

#include <doctest/doctest.h>

#include <vector>

namespace llmb {

TEST_CASE("a table grows by whole blocks, exactly at the border") {
  BlockAllocator allocator(4);
  BlockTable table(16);
  CHECK(table.grow_to(0, &allocator));
  CHECK(table.num_blocks() == 0);
  const int64_t lengths[] = {1, 15, 16, 17, 32, 33, 64};
  const int32_t expected[] = {1, 1, 1, 2, 2, 3, 4};
  for (int i = 0; i < 7; ++i) {
    CHECK(table.grow_to(lengths[i], &allocator));
    CHECK(table.num_blocks() == expected[i]);
    CHECK(table.capacity_tokens() == 16 * expected[i]);
  }
  CHECK_FALSE(table.grow_to(65, &allocator));
  CHECK(table.num_blocks() == 4);
  CHECK(table.grow_to(1, &allocator));  // never shrinks
  CHECK(table.num_blocks() == 4);
}

TEST_CASE("growth is all or nothing") {
  BlockAllocator allocator(3);
  BlockTable table(1);
  CHECK(table.grow_to(2, &allocator));
  CHECK_FALSE(table.grow_to(4, &allocator));
  CHECK_FALSE(table.grow_to(int64_t{1} << 40, &allocator));
  CHECK(table.num_blocks() == 2);
  CHECK(allocator.num_free() == 1);
}

TEST_CASE("release_all frees every block, and twice is no harm") {
  BlockAllocator allocator(4);
  BlockTable table(2);
  CHECK(table.grow_to(8, &allocator));
  table.release_all(&allocator);
  CHECK(allocator.num_free() == 4);
  CHECK(table.num_blocks() == 0);
  table.release_all(&allocator);
  CHECK(allocator.num_free() == 4);
  CHECK(table.grow_to(8, &allocator));
  CHECK(table.blocks() == std::vector<BlockId>{0, 1, 2, 3});
}

TEST_CASE("of a group with a window, blocks are given back once a position is past it, exactly at the border") {
  BlockAllocator allocator(12);
  BlockTable table(4, {0, 6});
  CHECK(table.grow_to(20, &allocator));
  CHECK(allocator.num_free() == 2);
  CHECK_FALSE(table.grow_to(28, &allocator));  // two blocks in each group
  CHECK(table.blocks(1) == std::vector<BlockId>{5, 6, 7, 8, 9});
  table.give_back_unseen(8, &allocator);  // sees 3 to 8
  CHECK(allocator.num_free() == 2);
  table.give_back_unseen(9, &allocator);
  CHECK(table.blocks(1) == std::vector<BlockId>{kNoBlock, 6, 7, 8, 9});
  CHECK(allocator.num_free() == 3);
  CHECK(table.has_seen_from(9));
  CHECK_FALSE(table.has_seen_from(8));
  table.give_back_unseen(9, &allocator);
  CHECK(allocator.num_free() == 3);
  table.give_back_unseen(17, &allocator);
  CHECK(table.num_live(0) == 5);
  CHECK(table.num_live(1) == 2);

  BlockTable other(4, {0, 6});
  other.share_seen(table, 18, &allocator);  // sees 13 to 18
  CHECK(other.blocks(0) == table.blocks(0));
  CHECK(other.blocks(1) == std::vector<BlockId>{kNoBlock, kNoBlock, kNoBlock, 8, 9});
  CHECK_THROWS_AS(BlockTable(4, {0, 6}).share_seen(table, 16, &allocator), CheckFailure);
  CHECK(allocator.num_references(8) == 2);
  CHECK_FALSE(other.is_shared(1, 3, allocator));  // not there
  CHECK(other.is_shared(1, 17, allocator));
  CHECK(allocator.num_references(other.copy_on_write(1, 17, &allocator).from) == 2);
  other.shrink_to(16, &allocator);
  CHECK(other.blocks(1) == std::vector<BlockId>{kNoBlock, kNoBlock, kNoBlock, 8});
  allocator.release(9);  // what the copy kept
  other.release_all(&allocator);
  table.release_all(&allocator);
  CHECK(allocator.num_free() == 12);
  CHECK(other.num_blocks() == 0);
}

TEST_CASE("a window of one position leaves no block at a border") {
  BlockAllocator allocator(8);
  BlockTable table(4, {1});
  CHECK(table.grow_to(8, &allocator));
  table.give_back_unseen(8, &allocator);
  CHECK(table.num_live(0) == 0);
  CHECK(allocator.num_free() == 8);
  CHECK(table.grow_to(9, &allocator));
  CHECK(table.num_live(0) == 1);
  table.release_all(&allocator);
  CHECK(allocator.num_free() == 8);
}

TEST_CASE("shrink_to gives back what is not needed, exactly at the border") {
  BlockAllocator allocator(4);
  BlockTable table(4);
  CHECK(table.grow_to(16, &allocator));
  table.shrink_to(13, &allocator);
  CHECK(table.num_blocks() == 4);
  table.shrink_to(12, &allocator);
  CHECK(table.blocks() == std::vector<BlockId>{0, 1, 2});
  CHECK(allocator.num_free() == 1);
  table.shrink_to(40, &allocator);
  CHECK(table.num_blocks() == 3);
  table.shrink_to(0, &allocator);
  CHECK(allocator.num_free() == 4);
}

TEST_CASE("tables share blocks by reference; who writes to one copies it, unless nobody else holds it any more") {
  BlockAllocator allocator(5);
  BlockTable first(4), second(4);
  CHECK(first.grow_to(10, &allocator));
  second.share(0, first.blocks(), &allocator);
  CHECK(second.blocks() == first.blocks());
  CHECK(allocator.num_free() == 2);
  CHECK(first.is_shared(0, 9, allocator));
  CHECK_FALSE(first.is_shared(0, 12, allocator));  // no block yet
  const BlockTable::Copy copy = second.copy_on_write(0, 9, &allocator);
  CHECK(copy.from == 2);
  CHECK(copy.to == 3);
  CHECK(second.blocks() == std::vector<BlockId>{0, 1, 3});
  CHECK(first.is_shared(0, 9, allocator));  // the caller holds it until the copy is planned
  allocator.release(copy.from);
  CHECK_FALSE(first.is_shared(0, 9, allocator));
  CHECK_FALSE(second.is_shared(0, 9, allocator));
  first.release_all(&allocator);
  CHECK(allocator.num_free() == 2);
  CHECK_FALSE(second.is_shared(0, 0, allocator));
  CHECK_THROWS_AS(second.copy_on_write(0, 0, &allocator), CheckFailure);
  second.release_all(&allocator);
  CHECK(allocator.num_free() == 5);
  CHECK(allocator.check_integrity().ok());
}

TEST_CASE("only an empty table can begin with another's blocks, and only with those that are held") {
  BlockAllocator allocator(4);
  BlockTable first(4), second(4);
  CHECK(first.grow_to(8, &allocator));
  CHECK_THROWS_AS(second.share(0, std::vector<BlockId>{2}, &allocator), CheckFailure);
  CHECK(second.grow_to(1, &allocator));
  CHECK_THROWS_AS(second.share(0, first.blocks(), &allocator), CheckFailure);
}

TEST_CASE("another block that holds the same takes a block's place, which is given back") {
  PrefixCache cache(4);
  BlockAllocator allocator(3, &cache);
  BlockTable first(4), second(4);
  CHECK(first.grow_to(4, &allocator));
  CHECK(second.grow_to(8, &allocator));
  cache.insert(kNoNode, -1, std::vector<TokenId>{1, 2, 3, 4}, 4, std::vector<BlockId>{0});
  first.release_all(&allocator);  // idle: nobody holds the block, and yet it is there
  CHECK(allocator.num_free() == 1);
  second.replace(0, 0, 0, &allocator);
  CHECK(second.blocks() == std::vector<BlockId>{0, 2});
  CHECK(allocator.num_references(0) == 1);
  CHECK(allocator.num_free() == 1);  // the block that it had
  CHECK(allocator.check_integrity().ok());
}

TEST_CASE("a block size below one throws") { CHECK_THROWS_AS(BlockTable(0), CheckFailure); }

}  // namespace llmb
