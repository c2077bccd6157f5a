#include "speculation/draft_prefixes.h"

#include <algorithm>
#include <utility>

#include "scheduler/plan_builder.h"

namespace llmb {

DraftPrefixes::DraftPrefixes(const BackendInfo& pool, const LentBlocks& lent)
    : lent_(lent),
      block_size_(lent ? lent.num_tokens() : pool.kv.block_size),
      cache_(block_size_),
      allocator_(lent ? lent.num_blocks : pool.kv.num_blocks, &cache_, lent ? INT32_MAX : pool.max_idle_blocks) {
  if (!lent) return;
  std::vector<BlockId> all;
  allocator_.allow_loans(lent.num_blocks);
  allocator_.lend(lent.num_blocks, &all);
}

bool DraftPrefixes::grow_to(int64_t num_tokens, BlockAllocator* lender, Sequence* text) {
  if (lent_ && lender != nullptr) borrow(ceil_div(num_tokens, block_size_) - text->blocks.num_blocks(), lender);
  return text->blocks.grow_to(num_tokens, &allocator_);
}

// Prompts that may be found again, its own and the target's, go last.
void DraftPrefixes::borrow(int64_t count, BlockAllocator* lender) {
  std::vector<BlockId> blocks;
  const auto ask_for = [&](int64_t number) {
    if (number > 0) lender->lend(static_cast<int32_t>(number), &blocks);
  };
  count -= allocator_.num_unused();
  ask_for(std::min<int64_t>(count, lender->num_unused()));
  count -= static_cast<int64_t>(blocks.size());
  ask_for(count - (allocator_.num_unlent() - allocator_.num_unused()));
  for (const BlockId block : blocks) allocator_.take_back(block);
  most_lent_ = std::max(most_lent_, allocator_.num_blocks() - allocator_.num_lent());
}

void DraftPrefixes::give_back(BlockAllocator* lender) {
  if (lender == nullptr) return;
  while (allocator_.num_unused() > 0) lender->take_back(take_unused());
}

BlockId DraftPrefixes::take_unused() {
  std::vector<BlockId> block;
  allocator_.allow_loans(1);
  allocator_.lend(1, &block);
  return block.empty() ? kNoBlock : block[0];
}

void DraftPrefixes::append_entry(const Sequence& text, int32_t num_tokens, StepPlan* plan) {
  const std::vector<BlockId>& blocks = text.blocks.blocks();
  if (!lent_) return llmb::append_entry(text, num_tokens, blocks, plan);
  // No more than its backend has places for.
  const auto num_own = static_cast<size_t>(ceil_div(text.max_next_base() + num_tokens, lent_.block_size));
  table_.clear();
  for (size_t i = 0; table_.size() < num_own; ++i) lent_.append(blocks.at(i), &table_);
  table_.resize(num_own);
  llmb::append_entry(text, num_tokens, table_, plan);
}

// The last known token is computed anyway, for what is drawn behind it.
void DraftPrefixes::share(Sequence* text) {
  const int32_t end = std::min(text->num_prompt_tokens(), text->num_known_tokens() - 1);
  std::vector<BlockId> first;  // of a table without blocks
  for (int32_t i = text->num_blocks_in_cache; (i + 1) * int64_t{block_size_} <= end; ++i) {
    const PrefixCache::Match match =
        cache_.find(text->cache_node, kNoAdapter, text->tokens(i * block_size_, block_size_, &scratch_));
    const BlockId block = match.num_tokens == block_size_ ? cache_.block(match.node, 0) : kNoBlock;
    if (block == kNoBlock) break;
    if (text->blocks.num_blocks() == 0) first.push_back(block);
    else if (text->blocks.blocks()[static_cast<size_t>(i)] != block) text->blocks.replace(0, i, block, &allocator_);
    stand_at(match.node, i + 1, text);
  }
  if (!first.empty()) text->blocks.share(0, first, &allocator_);
  text->num_computed_tokens = std::max(text->num_computed_tokens, text->num_blocks_in_cache * block_size_);
}

// Where another text's block stands for the same, which it had no chance to share, the text's own stay its own.
void DraftPrefixes::keep(Sequence* text, int32_t num_tokens) {
  const int32_t end = std::min(text->num_prompt_tokens(), text->num_computed_tokens + num_tokens);
  for (int32_t i = text->num_blocks_in_cache; (i + 1) * int64_t{block_size_} <= end; ++i) {
    const BlockId own = text->blocks.blocks()[static_cast<size_t>(i)];
    const int32_t num_ready = std::clamp(text->num_computed_tokens - i * block_size_, 0, block_size_);
    const NodeId node = cache_.insert(text->cache_node, kNoAdapter,
                                      text->tokens(i * block_size_, block_size_, &scratch_), num_ready, {&own, 1});
    if (cache_.block(node, 0) != own) return;
    stand_at(node, i + 1, text);
  }
}

void DraftPrefixes::stand_at(NodeId node, int32_t num_blocks, Sequence* text) {
  cache_.hold(node);
  cache_.let_go(std::exchange(text->cache_node, node));
  text->num_blocks_in_cache = num_blocks;
}

void DraftPrefixes::release(Sequence* text) {
  cache_.let_go(std::exchange(text->cache_node, kNoNode));
  text->num_blocks_in_cache = 0;
  text->blocks.release_all(&allocator_);
}

}  // namespace llmb
