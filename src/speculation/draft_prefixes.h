// Prompts that rows of a drafting model have in common: their whole blocks are computed once, and found again by tokens.
// Keys and values of a prompt do not depend on who computes them, so no draft changes.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "cache/block_allocator.h"
#include "cache/prefix_cache.h"
#include "scheduler/sequence.h"

namespace llmb {

class DraftPrefixes {
 public:
  // The pool has one layer group, its model no recurrent states.
  explicit DraftPrefixes(const BackendInfo& pool)
      : block_size_(pool.kv.block_size),
        cache_(block_size_),
        allocator_(pool.kv.num_blocks, &cache_, pool.max_idle_blocks) {}

  // Blocks that nobody references may hold prompts until they are handed out.
  BlockAllocator& allocator() { return allocator_; }

  // The text goes on behind what others have computed of its prompt, or compute in the plan being made before it.
  void share(Sequence* text);
  // The plan being made computes the next `num_tokens` of the text, which it has no entry of yet.
  void keep(Sequence* text, int32_t num_tokens);
  // The plan being made is complete.
  void end_plan() { cache_.make_ready(); }
  // Gives its blocks back.
  void release(Sequence* text);

 private:
  void stand_at(NodeId node, int32_t num_blocks, Sequence* text);

  const int32_t block_size_;
  PrefixCache cache_;  // the allocator's, which it outlives
  BlockAllocator allocator_;
  std::vector<TokenId> scratch_;
};

}  // namespace llmb
