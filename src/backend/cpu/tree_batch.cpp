#include "backend/cpu/tree_batch.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace llmb {

namespace {
constexpr int32_t kSharedScratchTokens = 1024;  // beside one tail; a step with more of them is computed in parts
}  // namespace

struct TreeBatch::Layout {
  const StepPlan& plan;
  std::span<const int32_t> positions;
  const Tables& tables;

  const BlockId* table(int32_t e) const { return tables.block_ids + tables.block_start[e]; }
};

int32_t TreeBatch::num_scratch_blocks(int32_t max_num_drafts, int32_t block_size) {
  const int32_t longest_tail = 1 + static_cast<int32_t>(ceil_div(max_num_drafts, block_size));
  return std::min(2 * max_num_drafts, longest_tail + static_cast<int32_t>(ceil_div(kSharedScratchTokens, block_size)));
}

void TreeBatch::lay_out(const StepPlan& plan, std::span<const int32_t> positions, const Tables& tables) {
  const Layout step = {plan, positions, tables};
  query_start_.assign(1, 0);
  block_start_.assign(1, 0);
  context_len_.clear();
  block_ids_.clear();
  tails_.clear();
  slot_copies_.clear();
  parts_.assign(1, Part());
  num_used_ = 0;
  for (int32_t e = 0; e < plan.num_entries(); ++e) {
    const int32_t entry_end = plan.query_start[e + 1];
    for (int32_t begin = plan.query_start[e], end = 0; begin < entry_end; begin = end) {
      end = begin + 1;
      while (end < entry_end && plan.parent_rows[end] == end - 1) ++end;
      add_run(step, e, begin, end);
    }
  }
}

void TreeBatch::add_run(const Layout& step, int32_t e, int32_t begin, int32_t end) {
  const int32_t context_len = step.positions[end - 1] + 1;
  if (begin == step.plan.query_start[e]) {
    block_ids_.insert(block_ids_.end(), step.table(e),
                      step.table(e) + ceil_div(context_len, step.tables.block_size));
  } else {
    add_tail(step, e, end - 1);
  }
  query_start_.push_back(end);
  context_len_.push_back(context_len);
  block_start_.push_back(static_cast<int32_t>(block_ids_.size()));
  ++parts_.back().end_run;
}

void TreeBatch::add_tail(const Layout& step, int32_t e, int32_t last_row) {
  const int32_t first_row = step.plan.query_start[e], block_size = step.tables.block_size;
  const auto is_in_place = [&](int32_t row) { return is_in_its_place(step.positions, first_row, row); };
  int32_t row = last_row;
  while (!is_in_place(row)) row = step.plan.parent_rows[row];
  const int32_t own = step.positions[row] + 1;  // positions that the entry's own blocks hold
  const int32_t num_whole = own / block_size;   // blocks
  const int32_t num_blocks = step.positions[last_row] / block_size + 1 - num_whole;
  LLMB_CHECK(num_blocks <= num_scratch_);
  if (num_used_ + num_blocks > num_scratch_) {
    const Part& full = parts_.back();
    parts_.push_back({full.end_run, full.end_run, full.end_tail, full.end_tail});
    num_used_ = 0;
  }
  const BlockId first_block = first_scratch_ + num_used_;
  num_used_ += num_blocks;
  block_ids_.insert(block_ids_.end(), step.table(e), step.table(e) + num_whole);
  for (int32_t i = 0; i < num_blocks; ++i) block_ids_.push_back(first_block + i);

  Tail tail;
  tail.has_block = own % block_size != 0;
  if (tail.has_block) tail.from = step.table(e)[num_whole], tail.to = first_block;
  tail.first_slot = slot_copies_.size();
  for (row = last_row; !is_in_place(row); row = step.plan.parent_rows[row])
    slot_copies_.push_back({step.tables.slots[row], int64_t{first_block - num_whole} * block_size + step.positions[row]});
  tail.end_slot = slot_copies_.size();
  tails_.push_back(tail);
  ++parts_.back().end_tail;
}

void TreeBatch::gather(const Part& part, const cpu::KvCacheView& kv, ThreadPool& pool) const {
  pool.parallel_for(part.end_tail - part.first_tail, [&](int64_t i, int) {
    const Tail& tail = tails_[part.first_tail + i];
    if (tail.has_block)
      std::memcpy(kv.keys(tail.to, 0), kv.keys(tail.from, 0), static_cast<size_t>(kv.block_bytes()));
    for (size_t at = tail.first_slot; at < tail.end_slot; ++at)
      cpu::copy_kv_slot(slot_copies_[at].from, slot_copies_[at].to, kv);
  });
}

cpu::AttentionBatch TreeBatch::batch(const Part& part) const {
  return {part.end_run - part.first_run, query_start_.data() + part.first_run, context_len_.data() + part.first_run,
          block_start_.data() + part.first_run, block_ids_.data()};
}

}  // namespace llmb
