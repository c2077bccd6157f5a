// The attention side of a step that has trees of drafts, in the form that paged_attention takes.
//
// A row of a tree sees its ancestors, whose keys and values may lie behind other branches. So an entry is cut into
// runs, whose rows have the row before them as parent, and each run becomes a sequence of its own. An entry's first run
// is in place. For any other, the keys and values of its path are gathered into scratch blocks, from the first block on
// that holds something else. Then the ordinary kernel sees what it sees without drafts, at the same positions, so that
// a row's bits are the same.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "core/step_plan.h"
#include "kernels/cpu/kv_cache.h"
#include "kernels/cpu/paged_attention.h"

namespace llmb {

// Whether a row of an entry that begins with first_row lies as far behind it as its position does.
inline bool is_in_its_place(std::span<const int32_t> positions, int32_t first_row, int32_t row) {
  return positions[static_cast<size_t>(row)] - positions[static_cast<size_t>(first_row)] == row - first_row;
}

class TreeBatch {
 public:
  // A part's runs fit the scratch blocks together.
  struct Part {
    int32_t first_run = 0, end_run = 0;
    int32_t first_tail = 0, end_tail = 0;
  };

  // Every layer has the scratch blocks [first_scratch, first_scratch + num_scratch).
  TreeBatch(BlockId first_scratch, int32_t num_scratch) : first_scratch_(first_scratch), num_scratch_(num_scratch) {}

  // Scratch blocks that hold the longest tail of a group with that many drafts, and mostly those of a whole step.
  static int32_t num_scratch_blocks(int32_t max_num_drafts, int32_t block_size);

  // Where the pool has a step's keys and values.
  struct Tables {
    int32_t block_size = 0;
    const BlockId* block_ids = nullptr;
    const int32_t* block_start = nullptr;  // [num_entries]
    const int32_t* slots = nullptr;        // [num_tokens]  those of rows in place are not looked at
  };
  // For the layers that have these tables. REQUIRES: plan.parent_rows; a sample group has at most as many drafts as the
  // scratch blocks are for.
  void lay_out(const StepPlan& plan, std::span<const int32_t> positions, const Tables& tables);

  // For each part in turn: gather, in each layer once its keys and values are written, then attend to the batch.
  std::span<const Part> parts() const { return parts_; }
  void gather(const Part& part, const cpu::KvCacheView& kv, ThreadPool& pool) const;
  cpu::AttentionBatch batch(const Part& part) const;

 private:
  struct SlotCopy {
    int64_t from, to;
  };
  // Goes to scratch blocks of its own: a whole block, where its first part is in place, then slots.
  struct Tail {
    BlockId from = 0, to = 0;
    bool has_block = false;
    size_t first_slot = 0, end_slot = 0;  // of slot_copies_
  };

  struct Layout;  // of the step that is laid out
  void add_run(const Layout& step, int32_t e, int32_t begin, int32_t end);
  void add_tail(const Layout& step, int32_t e, int32_t last_row);

  const BlockId first_scratch_;
  const int32_t num_scratch_;
  std::vector<int32_t> query_start_;  // [num_runs + 1]
  std::vector<int32_t> context_len_;  // [num_runs]
  std::vector<int32_t> block_start_;  // [num_runs + 1]
  std::vector<BlockId> block_ids_;
  std::vector<Tail> tails_;
  std::vector<SlotCopy> slot_copies_;
  std::vector<Part> parts_;
  int32_t num_used_ = 0;  // scratch blocks of the newest part
};

}  // namespace llmb
