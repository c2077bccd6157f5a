#include "backend/cpu/kv_slices.h"

#include "base/check.h"
#include "core/rank_part.h"

namespace llmb {

void KvSlices::begin_step(const StepPlan& plan, const ResolvedStep& step) {
  const int32_t size = ranks_.size(), num_tokens = plan.num_tokens();
  LLMB_CHECK(plan.block_size == size * kSliceTokens && plan.parent_rows.empty());
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
      const int32_t block = slot / plan.block_size, offset = slot % plan.block_size;
      const bool is_own = offset / kSliceTokens == ranks_.rank();
      own.push_back(is_own ? block * kSliceTokens + offset % kSliceTokens : -1);
    }
  }
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

}  // namespace llmb
