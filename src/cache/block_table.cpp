#include "cache/block_table.h"

#include <algorithm>
#include <utility>

#include "core/layer_groups.h"

namespace llmb {

BlockTable::BlockTable(int32_t block_size, const std::vector<int32_t>& windows) : block_size_(block_size) {
  LLMB_CHECK(block_size >= 1 && !windows.empty());
  for (const int32_t window : windows) groups_.push_back({window, {}});
}

bool BlockTable::grow_to(int64_t num_tokens, BlockAllocator* allocator) {
  const int64_t num_missing = ceil_div(num_tokens, block_size_) - num_blocks();
  if (num_missing <= 0) return true;
  if (num_missing * num_groups() > allocator->num_free()) return false;
  for (Group& group : groups_) LLMB_CHECK(allocator->allocate(static_cast<int32_t>(num_missing), &group.blocks));
  return true;
}

void BlockTable::shrink_to(int64_t num_tokens, BlockAllocator* allocator) {
  for (const int64_t needed = ceil_div(num_tokens, block_size_); num_blocks() > needed;)
    for (Group& group : groups_) {
      allocator->release(group.blocks.back());
      group.blocks.pop_back();
    }
}

int32_t BlockTable::first_seen_block(const Group& group, int32_t position) const {
  return std::min(first_seen(group.window, position) / block_size_, num_blocks());
}

void BlockTable::give_back_unseen(int32_t position, BlockAllocator* allocator) {
  for (Group& group : groups_)
    for (const int32_t end = first_seen_block(group, position); group.num_given_back < end; ++group.num_given_back)
      allocator->release(std::exchange(group.blocks[group.num_given_back], kNoBlock));
}

bool BlockTable::has_seen_from(int32_t position) const {
  return std::all_of(groups_.begin(), groups_.end(),
                     [&](const Group& group) { return group.num_given_back <= first_seen_block(group, position); });
}

void BlockTable::share(int32_t group, std::span<const BlockId> blocks, BlockAllocator* allocator) {
  LLMB_CHECK(groups_[group].blocks.empty());
  groups_[group].blocks.assign(blocks.begin(), blocks.end());
  for (const BlockId block : blocks) {
    if (block == kNoBlock) ++groups_[group].num_given_back;
    else allocator->share(block);
  }
}

std::span<const BlockId> BlockTable::blocks_at(int32_t index, std::vector<BlockId>* scratch) const {
  scratch->clear();
  for (const Group& group : groups_) scratch->push_back(group.blocks[index]);
  return *scratch;
}

void BlockTable::share_seen(const BlockTable& other, int32_t position, BlockAllocator* allocator) {
  LLMB_CHECK(num_blocks() == 0 && other.has_seen_from(position));
  const auto num_shared = static_cast<int32_t>(ceil_div(position, block_size_));
  for (int32_t g = 0; g < num_groups(); ++g) {
    Group& group = groups_[g];
    group.num_given_back = std::min(other.first_seen_block(group, position), num_shared);
    group.blocks.assign(group.num_given_back, kNoBlock);
    for (int32_t i = group.num_given_back; i < num_shared; ++i) {
      group.blocks.push_back(other.blocks(g)[i]);
      allocator->share(group.blocks.back());
    }
  }
}

void BlockTable::replace(int32_t group, int32_t index, BlockId same, BlockAllocator* allocator) {
  allocator->share(same);
  allocator->release(std::exchange(groups_[group].blocks[index], same));
}

bool BlockTable::is_shared(int32_t group, int64_t position, const BlockAllocator& allocator) const {
  if (position >= capacity_tokens()) return false;
  const BlockId block = blocks(group)[position / block_size_];
  return block != kNoBlock && allocator.num_references(block) > 1;
}

int32_t BlockTable::num_unshared(const BlockAllocator& allocator) const {
  const auto is_own = [&](BlockId block) { return block != kNoBlock && allocator.num_references(block) == 1; };
  int32_t count = 0;
  for (const Group& group : groups_)
    count += static_cast<int32_t>(std::count_if(group.blocks.begin(), group.blocks.end(), is_own));
  return count;
}

BlockTable::Copy BlockTable::copy_on_write(int32_t group, int64_t position, BlockAllocator* allocator) {
  std::vector<BlockId>& blocks = groups_[group].blocks;
  LLMB_CHECK(is_shared(group, position, *allocator) && allocator->allocate(1, &blocks));
  const BlockId own = blocks.back();
  blocks.pop_back();
  return {group, std::exchange(blocks[position / block_size_], own), own};
}

void BlockTable::release_all(BlockAllocator* allocator) {
  // Last first, so that the free list hands them out again in the order in which this table had them.
  for (int32_t i = num_blocks() - 1; i >= 0; --i)
    for (const Group& group : groups_)
      if (i >= group.num_given_back) allocator->release(group.blocks[i]);
  for (Group& group : groups_) group.blocks.clear(), group.num_given_back = 0;
}

}  // namespace llmb
