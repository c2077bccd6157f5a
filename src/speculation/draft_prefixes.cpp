#include "speculation/draft_prefixes.h"

#include <algorithm>
#include <utility>

namespace llmb {

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
