#include "backend/cpu/kv_slices.h"

#include <algorithm>

#include "base/check.h"

namespace llmb {

void KvSlices::begin_step(const StepPlan& plan, const ResolvedStep& step) {
  const int32_t size = ranks_.size(), num_tokens = plan.num_tokens();
  LLMB_CHECK(plan.block_size == size * kSliceTokens);
  plan_ = &plan, step_ = &step;
  block_ids_.clear();
  for (const BlockId block : plan.block_ids) block_ids_.insert(block_ids_.end(), static_cast<size_t>(size), block);
  slots_.resize(static_cast<size_t>(plan.num_layer_groups));
  block_start_.resize(slots_.size());
  for (int32_t group = 0; group < plan.num_layer_groups; ++group) {
    std::vector<int32_t>& starts = block_start_[static_cast<size_t>(group)];
    starts.clear();
    for (int32_t e = 0; e < plan.num_entries(); ++e)
      starts.push_back(size * plan.block_start[e * plan.num_layer_groups + group]);
    std::vector<int32_t>& own = slots_[static_cast<size_t>(group)];
    own.clear();
    for (int32_t row = 0; row < num_tokens; ++row) {
      const int32_t slot = step.slots[static_cast<size_t>(group) * num_tokens + row];
      own.push_back(rank_of(slot) == ranks_.rank() ? own_slot(slot) : -1);
    }
  }
  place_trees();
}

// Whoever has the positions where such a row is seen has it at hand: every rank computes all rows of a step with trees.
void KvSlices::place_trees() {
  kv_slots_.clear();
  if (plan_->parent_rows.empty()) return;
  kv_slots_ = slots_;
  int32_t slot = first_row_slice_ * kSliceTokens;
  for (int32_t e = 0; e < plan_->num_entries(); ++e)
    for (int32_t row = plan_->query_start[e]; row < plan_->query_start[e + 1]; ++row) {
      if (is_in_its_place(step_->positions, plan_->query_start[e], row)) continue;
      for (std::vector<int32_t>& slots : kv_slots_) slots[static_cast<size_t>(row)] = slot;
      ++slot;
    }
}

TreeBatch::Tables KvSlices::tables(int32_t layer_group) const {
  return {kSliceTokens, block_ids_.data(), block_start_[static_cast<size_t>(layer_group)].data(), kv_slots(layer_group)};
}

cpu::AttentionBatch KvSlices::batch(int32_t layer_group) const {
  return {plan_->num_entries(),
          plan_->query_start.data(),
          step_->context_len.data(),
          block_start_[static_cast<size_t>(layer_group)].data(),
          block_ids_.data(),
          {},
          nullptr};
}

float* KvSlices::queries(int64_t width) {
  const auto floats = static_cast<size_t>(plan_->num_tokens() * width);
  if (queries_.size() < floats) queries_.resize(floats);
  return queries_.data();
}

// In parts: each rank gives those of its slots, in the order of rows.
void KvSlices::load_hidden(const HiddenRows& hidden, std::span<const int32_t> slots, const Range& wanted, float* out,
                           ThreadPool& pool) {
  const int64_t width = hidden.width(), num_rows = static_cast<int64_t>(slots.size());
  const int64_t most = ranks_.room_bytes() / (width * int64_t{sizeof(float)});
  for (int64_t at = 0; at < num_rows; at += most) {
    const int64_t end = std::min(num_rows, at + most);
    std::vector<int32_t> own;
    for (int64_t row = at; row < end; ++row)
      if (const int32_t slot = slots[static_cast<size_t>(row)]; slot >= 0 && rank_of(slot) == ranks_.rank())
        own.push_back(own_slot(slot));
    const auto num_own = static_cast<int64_t>(own.size());
    hidden.load(own.data(), num_own, static_cast<float*>(ranks_.room(num_own * width * int64_t{sizeof(float)})), pool);
    std::vector<const float*> next;
    for (const void* const part : ranks_.share()) next.push_back(static_cast<const float*>(part));
    for (int64_t row = at; row < end; ++row) {
      const int32_t slot = slots[static_cast<size_t>(row)];
      const float* const from = slot < 0 ? nullptr : next[static_cast<size_t>(rank_of(slot))];
      if (slot >= 0) next[static_cast<size_t>(rank_of(slot))] += width;
      if (!wanted.holds(row)) continue;
      float* const to = out + (row - wanted.begin) * width;
      if (from == nullptr) std::fill_n(to, width, 0.0f);
      else std::copy_n(from, width, to);
    }
  }
}

}  // namespace llmb
