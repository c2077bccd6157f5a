// Who owns which KV block: a free list with reference counts. Ids only, never memory.
//
// Not thread-safe. Invariants (check_integrity):
//  1. A block is either on the free list once, with no references, or has at least one reference.
//  2. num_free() + referenced blocks == num_blocks().
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "core/types.h"

namespace llmb {

class BlockAllocator {
 public:
  explicit BlockAllocator(int32_t num_blocks);  // >= 0; all free

  // Appends `count` ids with one reference each to `blocks`, or changes nothing and returns false. The block freed
  // last is handed out first; at first the ids come in increasing order.
  [[nodiscard]] bool allocate(int32_t count, std::vector<BlockId>* blocks);
  void share(BlockId block);    // one more reference. REQUIRES: referenced
  void release(BlockId block);  // one reference less; free with none left. REQUIRES: referenced, so twice throws

  int32_t num_blocks() const { return static_cast<int32_t>(references_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t num_references(BlockId block) const;

  Status check_integrity() const;

 private:
  std::vector<int32_t> references_;  // [num_blocks]
  std::vector<BlockId> free_;        // a stack
};

}  // namespace llmb
