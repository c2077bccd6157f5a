// Prompts of a plan whose latents are expanded: which they are, and attention's list of them.
#include <algorithm>

#include "backend/cuda/step_stage.h"
#include "base/check.h"

namespace llmb {

cuda::AttentionShape StepStage::attention_shape(size_t kind, const StepShape& shape) const {
  cuda::AttentionShape s = kinds_[kind].shape;
  if (is_expanded(kind)) s.num_heads = s.num_kv_heads = shape.expanded.num_heads;
  return s;
}

// Rows that follow a token in flight, or are behind their place, are few.
ExpandedSize StepStage::expand(const StepPlan& plan) {
  if (expansion_.max_blocks == 0 || plan.is_mtp || !plan.parent_rows.empty() || !plan.hidden_rows.empty()) return {};
  std::vector<PromptRows> prompts;
  for (int32_t e = 0; e < plan.num_entries(); ++e) {
    const bool is_known = plan.entries[e].follows == kNoGroup;
    prompts.push_back({is_known ? plan.num_rows(e) : 0, plan.max_context_len(e)});
  }
  return choose_expanded(expansion_.latent, kinds_.back().shape.num_heads, expansion_.max_blocks, prompts,
                         &expanded_entries_);
}

// Entries are attention's sequences then. Their expanded blocks stand one behind the other.
void StepStage::pack_expanded(const StepPlan& plan, const StepShape& shape, cuda::ExpandedBlock* blocks) {
  const auto num_entries = static_cast<size_t>(plan.num_entries());
  LLMB_CHECK(expanded_entries_.size() == num_entries && context_len_.size() == num_entries && !shape.is_split());
  absorbed_entries_.assign(num_entries, 1);
  expanded_start_.assign(num_entries, 0);
  absorbed_.clear();
  int32_t num_blocks = 0;
  for (int32_t e = 0; e < plan.num_entries(); ++e) {
    const int64_t begin = plan.query_start[e], end = plan.query_start[e + 1];
    if (expanded_entries_[e] == 0) {
      if (absorbed_.empty() || absorbed_.back().end < begin) absorbed_.push_back({begin, end});
      absorbed_.back().end = end;
      continue;
    }
    absorbed_entries_[e] = 0;
    expanded_start_[e] = num_blocks;
    for (int32_t first = 0; first < context_len_[e]; first += cuda::kExpandedBlock)
      blocks[num_blocks++] = {table_start_[e], first, std::min(cuda::kExpandedBlock, context_len_[e] - first)};
  }
  LLMB_CHECK(num_blocks == shape.expanded.num_blocks);
  const cuda::AttentionBatch batch{plan.num_entries(),    query_start_.data(), context_len_.data(),
                                   expanded_start_.data(), nullptr,             absorbed_entries_.data()};
  const size_t kind = kinds_.size() - 1;
  cuda::schedule_attention(batch, attention_shape(kind, shape), kinds_[kind].num_ctas, &schedules_[0][kind]);
}

}  // namespace llmb
