// Who owns which KV block: a free list with reference counts. Ids only, never memory. Blocks that the prefix cache
// holds stay in it when nobody references them. They count as free: they are handed out when no other block is left.
//
// Not thread-safe. Invariants (check_integrity):
//  1. A block is either on the free list once, or idle in the prefix cache, or has at least one reference.
//  2. num_free() + referenced blocks == num_blocks().
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "cache/prefix_cache.h"
#include "core/types.h"

namespace llmb {

class BlockAllocator {
 public:
  // >= 0, all free. The cache outlives the allocator; null: nothing is kept. max_idle: with so many idle blocks in the
  // cache it gives one up although there are blocks that were never used, whose memory is then left to others.
  explicit BlockAllocator(int32_t num_blocks, PrefixCache* cache = nullptr, int32_t max_idle = INT32_MAX);

  // Appends `count` ids with one reference each to `blocks`, or changes nothing and returns false. The block freed
  // last is handed out first; at first the ids come in increasing order. Idle blocks come last, but for max_idle.
  [[nodiscard]] bool allocate(int32_t count, std::vector<BlockId>* blocks);
  void share(BlockId block);    // one more reference. REQUIRES: referenced, or idle in the cache
  void release(BlockId block);  // one reference less. REQUIRES: referenced, so twice throws

  int32_t num_blocks() const { return static_cast<int32_t>(references_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()) + (cache_ ? cache_->num_idle() : 0); }
  int32_t num_references(BlockId block) const;

  Status check_integrity() const;

 private:
  PrefixCache* const cache_;
  const int32_t max_idle_;
  std::vector<int32_t> references_;  // [num_blocks]
  std::vector<BlockId> free_;        // a stack
};

}  // namespace llmb
