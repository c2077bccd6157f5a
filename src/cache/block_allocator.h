// Who owns which KV block: a free list with reference counts. Ids only, never memory. Blocks that the prefix cache
// holds stay in it when nobody references them. They count as free: they are handed out when no other block is left.
//
// Blocks may be lent to another allocator, whose owner gives them back when it is asked. They count as free, too: those
// that the borrower does not use are handed out before idle ones are, those that it uses when no other block is left.
//
// Not thread-safe. Invariants (check_integrity):
//  1. A block is either on the free list once, or idle in the prefix cache, or lent, or has at least one reference.
//  2. num_free() + referenced blocks == num_blocks(), with a borrower; else lent ones are neither.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "cache/prefix_cache.h"
#include "core/types.h"

namespace llmb {

// Has blocks that an allocator lent.
class BlockBorrower {
 public:
  virtual ~BlockBorrower() = default;
  // A lent block that it does not use, or any; kNoBlock: it uses all. REQUIRES: it has one
  virtual BlockId give_back(bool even_used) = 0;
};

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

  // lend() gives so many from now on, together; at first none.
  void allow_loans(int32_t count) { num_lendable_ = count; }
  // Appends up to `count` ids, free ones first, then idle ones that no preempted sequence wants back.
  void lend(int32_t count, std::vector<BlockId>* blocks);
  void take_back(BlockId block);  // which the borrower gives back unasked. REQUIRES: lent
  // Who has what is lent from now on and outlives the allocator's use; null: nobody gives it back when it is needed, so
  // it does not count as free.
  void set_borrower(BlockBorrower* borrower) { borrower_ = borrower; }
  int32_t num_lent() const { return num_lent_; }
  int32_t num_unlent() const { return num_unused() + num_idle(); }  // free ones that are not lent
  int32_t num_unused() const { return static_cast<int32_t>(free_.size()); }  // neither idle nor lent nor referenced

  int32_t num_blocks() const { return static_cast<int32_t>(references_.size()); }
  int32_t num_free() const { return num_unused() + num_idle() + (borrower_ != nullptr ? num_lent_ : 0); }
  int32_t num_references(BlockId block) const;

  Status check_integrity() const;

 private:
  int32_t num_idle() const { return cache_ ? cache_->num_idle() : 0; }
  BlockId take_one();
  BlockId end_loan(BlockId block);

  PrefixCache* const cache_;
  const int32_t max_idle_;
  BlockBorrower* borrower_ = nullptr;
  int32_t num_lent_ = 0, num_lendable_ = 0;
  std::vector<uint8_t> is_lent_;     // [num_blocks]
  std::vector<int32_t> references_;  // [num_blocks]
  std::vector<BlockId> free_;        // a stack
};

}  // namespace llmb
