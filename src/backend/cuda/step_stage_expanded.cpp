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
ExpandedSize StepStage::expand(const StepPlan& plan, const Range& own) {
  if (expansion_.max_blocks == 0 || plan.is_mtp || !plan.parent_rows.empty() || !plan.hidden_rows.empty()) return {};
  std::vector<PromptRows> prompts;
  for_own_entries(plan, own, [&](int32_t e, int32_t begin, int32_t end) {
    const bool is_known = plan.entries[e].follows == kNoGroup;
    prompts.push_back({is_known ? end - begin : 0, plan.entries[e].max_base() + end - plan.query_start[e]});
  });
  return choose_expanded(expansion_.latent, kinds_.back().shape.num_heads, expansion_.max_blocks, prompts,
                         &expanded_seqs_);
}

// Sequences of attention are entries, or what this rank has of them. Their expanded blocks stand one behind the other.
void StepStage::pack_expanded(const StepPlan& plan, const StepShape& shape, cuda::ExpandedBlock* blocks) {
  const auto num_seqs = static_cast<int32_t>(context_len_.size());
  LLMB_CHECK(expanded_seqs_.size() == context_len_.size() && num_seqs <= plan.num_entries() && !shape.is_split());
  absorbed_seqs_.assign(context_len_.size(), 1);
  expanded_start_.assign(context_len_.size(), 0);
  absorbed_.clear();
  int32_t num_blocks = 0;
  for (int32_t i = 0; i < num_seqs; ++i) {
    const int64_t begin = query_start_[i] - shape.own.begin, end = query_start_[i + 1] - shape.own.begin;
    if (expanded_seqs_[i] == 0) {
      if (absorbed_.empty() || absorbed_.back().end < begin) absorbed_.push_back({begin, end});
      absorbed_.back().end = end;
      continue;
    }
    absorbed_seqs_[i] = 0;
    expanded_start_[i] = num_blocks;
    for (int32_t first = 0; first < context_len_[i]; first += cuda::kExpandedBlock)
      blocks[num_blocks++] = {block_start_[i], first, std::min(cuda::kExpandedBlock, context_len_[i] - first)};
  }
  LLMB_CHECK(num_blocks == shape.expanded.num_blocks);
  const cuda::AttentionBatch batch{num_seqs,               query_start_.data(), context_len_.data(),
                                   expanded_start_.data(), nullptr,             absorbed_seqs_.data()};
  const size_t kind = kinds_.size() - 1;
  cuda::schedule_attention(batch, attention_shape(kind, shape), kinds_[kind].num_ctas, &schedules_[0][kind]);
}

}  // namespace llmb
