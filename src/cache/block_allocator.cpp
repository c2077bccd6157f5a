#include "cache/block_allocator.h"

#include <string>

namespace llmb {

BlockAllocator::BlockAllocator(int32_t num_blocks, PrefixCache* cache, int32_t max_idle)
    : cache_(cache), max_idle_(max_idle) {
  LLMB_CHECK(num_blocks >= 0 && max_idle >= 1);
  references_.assign(num_blocks, 0);
  is_lent_.assign(num_blocks, 0);
  free_.reserve(num_blocks);
  for (BlockId block = num_blocks - 1; block >= 0; --block) free_.push_back(block);
}

bool BlockAllocator::allocate(int32_t count, std::vector<BlockId>* blocks) {
  LLMB_CHECK(count >= 0);
  if (count > num_free()) return false;
  for (int32_t i = 0; i < count; ++i) {
    const BlockId block = take_one();
    references_[block] = 1;
    blocks->push_back(block);
  }
  return true;
}

// REQUIRES: num_free() > 0
BlockId BlockAllocator::take_one() {
  if (cache_ && cache_->num_idle() >= max_idle_) free_.push_back(cache_->evict());
  if (free_.empty() && borrower_ != nullptr && num_lent_ > 0) {
    const BlockId block = borrower_->give_back(/*even_used=*/num_idle() == 0 || cache_->is_oldest_wanted());
    if (block != kNoBlock) return end_loan(block);
  }
  if (free_.empty()) return cache_->evict();
  const BlockId block = free_.back();
  free_.pop_back();
  return block;
}

void BlockAllocator::lend(int32_t count, std::vector<BlockId>* blocks) {
  for (; count > 0 && num_lendable_ > 0; --count, --num_lendable_) {
    if (free_.empty() && (num_idle() == 0 || cache_->is_oldest_wanted())) return;
    if (free_.empty()) free_.push_back(cache_->evict());
    is_lent_[free_.back()] = 1;
    blocks->push_back(free_.back());
    free_.pop_back();
    ++num_lent_;
  }
}

void BlockAllocator::take_back(BlockId block) { free_.push_back(end_loan(block)); }

BlockId BlockAllocator::end_loan(BlockId block) {
  LLMB_CHECK_MSG(block >= 0 && block < num_blocks() && is_lent_[block], "block is not lent: " + std::to_string(block));
  is_lent_[block] = 0;
  --num_lent_;
  return block;
}

void BlockAllocator::share(BlockId block) {
  if (num_references(block) == 0) {
    LLMB_CHECK_MSG(cache_ && cache_->is_idle(block), "share of free block " + std::to_string(block));
    cache_->reuse(block);
  }
  ++references_[block];
}

void BlockAllocator::release(BlockId block) {
  LLMB_CHECK_MSG(num_references(block) > 0, "release of free block " + std::to_string(block));
  if (--references_[block] > 0) return;
  if (cache_ && cache_->holds(block)) cache_->become_idle(block);
  else free_.push_back(block);
}

int32_t BlockAllocator::num_references(BlockId block) const {
  LLMB_CHECK_MSG(block >= 0 && block < num_blocks(), "no block " + std::to_string(block));
  return references_[block];
}

Status BlockAllocator::check_integrity() const {
  std::vector<bool> is_free(references_.size());
  for (const BlockId block : free_) {
    if (block < 0 || block >= num_blocks() || is_free[block] || references_[block] != 0 || is_lent_[block] ||
        (cache_ && cache_->holds(block)))
      return internal_error("block allocator invariant 1 broken at block " + std::to_string(block));
    is_free[block] = true;
  }
  for (BlockId block = 0; cache_ && block < num_blocks(); ++block)
    if (cache_->is_idle(block) != (cache_->holds(block) && references_[block] == 0))
      return internal_error("block allocator invariant 1 broken at cached block " + std::to_string(block));
  int32_t num_referenced = 0, num_lent = 0;
  for (BlockId block = 0; block < num_blocks(); ++block) {
    if (references_[block] < 0) return internal_error("block allocator invariant 1 broken: negative references");
    if (is_lent_[block] && (references_[block] > 0 || (cache_ && cache_->holds(block))))
      return internal_error("block allocator invariant 1 broken at lent block " + std::to_string(block));
    num_referenced += references_[block] > 0;
    num_lent += is_lent_[block];
  }
  if (num_unused() + num_idle() + num_lent + num_referenced != num_blocks() || num_lent != num_lent_)
    return internal_error("block allocator invariant 2 broken: " + std::to_string(num_free()) + " free + " +
                          std::to_string(num_referenced) + " referenced of " + std::to_string(num_blocks()));
  return {};
}

}  // namespace llmb
