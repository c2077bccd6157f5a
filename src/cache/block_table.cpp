#include "cache/block_table.h"

#include <algorithm>
#include <utility>

namespace llmb {

BlockTable::BlockTable(int32_t block_size) : block_size_(block_size) { LLMB_CHECK(block_size >= 1); }

bool BlockTable::grow_to(int64_t num_tokens, BlockAllocator* allocator) {
  const int64_t num_missing = ceil_div(num_tokens, block_size_) - num_blocks();
  if (num_missing <= 0) return true;
  return num_missing <= allocator->num_free() && allocator->allocate(static_cast<int32_t>(num_missing), &blocks_);
}

void BlockTable::shrink_to(int64_t num_tokens, BlockAllocator* allocator) {
  for (const int64_t needed = ceil_div(num_tokens, block_size_); num_blocks() > needed; blocks_.pop_back())
    allocator->release(blocks_.back());
}

void BlockTable::share(std::span<const BlockId> blocks, BlockAllocator* allocator) {
  LLMB_CHECK(blocks_.empty());
  blocks_.assign(blocks.begin(), blocks.end());
  for (const BlockId block : blocks_) allocator->share(block);
}

void BlockTable::replace(int32_t index, BlockId same, BlockAllocator* allocator) {
  allocator->share(same);
  allocator->release(std::exchange(blocks_[index], same));
}

bool BlockTable::is_shared(int64_t position, const BlockAllocator& allocator) const {
  return position < capacity_tokens() && allocator.num_references(blocks_[position / block_size_]) > 1;
}

int32_t BlockTable::num_unshared(const BlockAllocator& allocator) const {
  const auto is_own = [&](BlockId block) { return allocator.num_references(block) == 1; };
  return static_cast<int32_t>(std::count_if(blocks_.begin(), blocks_.end(), is_own));
}

BlockTable::Copy BlockTable::copy_on_write(int64_t position, BlockAllocator* allocator) {
  LLMB_CHECK(is_shared(position, *allocator) && allocator->allocate(1, &blocks_));
  const BlockId own = blocks_.back();
  blocks_.pop_back();
  return {std::exchange(blocks_[position / block_size_], own), own};
}

void BlockTable::release_all(BlockAllocator* allocator) {
  // Last first, so that the free list hands them out again in the order in which this table had them.
  for (; !blocks_.empty(); blocks_.pop_back()) allocator->release(blocks_.back());
}

}  // namespace llmb
