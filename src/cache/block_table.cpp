#include "cache/block_table.h"

namespace llmb {

BlockTable::BlockTable(int32_t block_size) : block_size_(block_size) { LLMB_CHECK(block_size >= 1); }

bool BlockTable::grow_to(int64_t num_tokens, BlockAllocator* allocator) {
  const int64_t num_missing = ceil_div(num_tokens, block_size_) - num_blocks();
  if (num_missing <= 0) return true;
  return num_missing <= allocator->num_free() && allocator->allocate(static_cast<int32_t>(num_missing), &blocks_);
}

void BlockTable::release_all(BlockAllocator* allocator) {
  // Last first, so that the free list hands them out again in the order in which this table had them.
  for (; !blocks_.empty(); blocks_.pop_back()) allocator->release(blocks_.back());
}

}  // namespace llmb
