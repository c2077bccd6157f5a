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

TEST_CASE("slots follow the order of the blocks and stay where they are while the table grows") {
  BlockAllocator allocator(8);
  std::vector<BlockId> others;
  REQUIRE(allocator.allocate(5, &others));
  for (const BlockId block : {1, 4, 2}) allocator.release(block);  // handed out as 2, 4, 1
  BlockTable table(4);
  CHECK(table.grow_to(5, &allocator));
  CHECK(table.blocks() == std::vector<BlockId>{2, 4});
  CHECK(table.slot(0) == 8);
  CHECK(table.slot(3) == 11);
  CHECK(table.slot(4) == 16);
  CHECK(table.grow_to(9, &allocator));
  CHECK(table.slot(3) == 11);
  CHECK(table.slot(4) == 16);
  CHECK(table.slot(8) == 4);
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

TEST_CASE("a block size below one throws") { CHECK_THROWS_AS(BlockTable(0), CheckFailure); }

}  // namespace llmb
