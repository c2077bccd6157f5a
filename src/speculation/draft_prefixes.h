// The blocks of a drafting model's rows. Whole blocks of prompts that rows have in common are computed once, and found
// again by tokens: keys and values of a prompt do not depend on who computes them, so no draft changes.
//
// The blocks are the model's own, or they lie in blocks that the target's pool lends (core/lent_blocks.h): then a block is
// such a one here, of LentBlocks::num_tokens() tokens, by the target's id.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "cache/block_allocator.h"
#include "cache/prefix_cache.h"
#include "core/lent_blocks.h"
#include "scheduler/sequence.h"
#include "speculation/drafter.h"

namespace llmb {

class DraftPrefixes {
 public:
  // The pool has one layer group, its model no recurrent states.
  DraftPrefixes(const BackendInfo& pool, const LentBlocks& lent);

  int32_t block_size() const { return block_size_; }
  // Gives the text blocks for so many tokens: where they are lent, of those that `lender` has for it beside its own.
  // False: there are none. null: nothing is lent now
  [[nodiscard]] bool grow_to(int64_t num_tokens, BlockAllocator* lender, Sequence* text);

  // The text goes on behind what others have computed of its prompt, or compute in the plan being made before it.
  void share(Sequence* text);
  // The plan being made computes the next `num_tokens` of the text, which it has no entry of yet.
  void keep(Sequence* text, int32_t num_tokens);
  // Appends that entry.
  void append_entry(const Sequence& text, int32_t num_tokens, StepPlan* plan);
  // The plan being made is complete.
  void end_plan() { cache_.make_ready(); }
  // Gives its blocks back.
  void release(Sequence* text);

  // Blocks that nobody uses go back to the lender, but for prompts that may be found again.
  void give_back(BlockAllocator* lender);
  // A lent block that no text uses, for the lender; kNoBlock: texts use all.
  BlockId take_unused();
  int32_t most_lent() const { return most_lent_; }

 private:
  void borrow(int64_t count, BlockAllocator* lender);
  void stand_at(NodeId node, int32_t num_blocks, Sequence* text);

  const LentBlocks lent_;
  const int32_t block_size_;
  PrefixCache cache_;  // the allocator's, which it outlives
  BlockAllocator allocator_;  // what the target has not lent is lent to it, and not free
  int32_t most_lent_ = 0;
  std::vector<TokenId> scratch_;
  std::vector<BlockId> table_;
};

}  // namespace llmb
