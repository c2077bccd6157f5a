// Which prefixes a step's attention reads together: of those that a plan names, for the rows and layers that gain by it.
#include <algorithm>

#include "backend/cuda/step_stage.h"
#include "core/layer_groups.h"
#include "core/shared_prefixes.h"

namespace llmb {

// Rows follow at least one token that the step before gives.
void StepStage::find_least_positions(const StepPlan& plan) {
  least_position_.clear();
  for (const StepEntry& entry : plan.entries)
    least_position_.push_back(entry.base + (entry.follows == kNoGroup ? 0 : 1));
}

// Positions of a prefix that lie before every row that may read them together, and that these share in all layer groups.
// In a group with a window they have the same blocks as far as each of them sees: those of the row that looks back
// furthest.
int32_t StepStage::num_shared_positions(const StepPlan& plan, std::span<const int32_t> entries,
                                        const SharedPrefix& prefix) const {
  const auto table = [&](int32_t e, int32_t group) {
    const size_t at = static_cast<size_t>(e) * plan.num_layer_groups + group;
    return std::span(plan.block_ids).subspan(plan.block_start[at], plan.block_start[at + 1] - plan.block_start[at]);
  };
  std::vector<int32_t> sharing;
  for (const int32_t e : entries)
    if (cuda::shares_positions(attention_, plan.num_rows(e))) sharing.push_back(e);
  if (sharing.empty()) return 0;
  const auto is_before = [&](int32_t a, int32_t b) { return least_position_[a] < least_position_[b]; };
  const int32_t widest = *std::min_element(sharing.begin(), sharing.end(), is_before);
  int32_t num_blocks = prefix.num_blocks;
  for (int32_t group = 0; group < plan.num_layer_groups; ++group) {
    if (group == prefix.layer_group) continue;
    for (const int32_t e : sharing) {
      const auto theirs = table(widest, group), own = table(e, group);
      int32_t i = first_seen(windows_.of_groups[group], least_position_[e]) / plan.block_size;
      while (i < num_blocks && theirs[i] == own[i]) ++i;
      num_blocks = std::min(num_blocks, i);
    }
  }
  return std::min(num_blocks * plan.block_size, least_position_[widest]);
}

// Whether it is worth while. Entries are attention's sequences then: steps with trees go row by row. Both parts of a step
// go by one kernel: where the second would take another than the first, its rows go row by row.
bool StepStage::schedule_shared(const StepPlan& plan, const cuda::AttentionBatch& batch, int part, const Entries& own,
                                int32_t ctas) {
  cuda::SharedAttentionSchedule& schedule = shared_schedules_[part];
  schedule.items.clear();
  schedule.tokens.clear();
  least_windows_[part] = 0;
  const std::span<const SharedPrefix> prefixes = shared_prefixes(plan, windows_.widest_group);
  if (prefixes.empty() || has_tree_ || plan.is_mtp) return false;
  find_least_positions(plan);
  shared_positions_.clear();
  sharing_seqs_.clear();
  std::vector<int32_t> place(plan.shared_entries.size() + 1, 0);  // of the first from each one on that is the part's
  for (size_t i = 0; i < plan.shared_entries.size(); ++i) {
    place[i] = static_cast<int32_t>(sharing_seqs_.size());
    if (const int32_t e = plan.shared_entries[i]; own.hold(e)) sharing_seqs_.push_back(e - own.begin);
  }
  place.back() = static_cast<int32_t>(sharing_seqs_.size());
  std::vector<int32_t> entries;
  for (const SharedPrefix& prefix : prefixes) {
    const int32_t begin = place[prefix.entry_begin], end = place[prefix.entry_end];
    if (end - begin < 2) continue;
    entries.clear();
    for (int32_t i = begin; i < end; ++i) entries.push_back(sharing_seqs_[i] + own.begin);
    shared_positions_.push_back({num_shared_positions(plan, entries, prefix), begin, end});
  }
  if (shared_positions_.empty()) return false;
  const cuda::SharedAttentionBatch shared{shared_positions_, sharing_seqs_, least_position_.data() + own.begin};
  cuda::AttentionShape shape = attention_;
  shape.window = least_windows_[part] = windows_.of_layers[0];
  cuda::schedule_shared_attention(batch, shared, shape, ctas, limits_.max_num_shared_tokens(), &schedule);
  const cuda::SharedAttentionSchedule& first = shared_schedules_[0];
  if (part > 0 && !first.items.empty() && first.uses_wgmma != schedule.uses_wgmma) schedule.items.clear(), schedule.tokens.clear();
  if (schedule.items.empty()) return false;
  for (size_t i = 1; i < windows_.of_layers.size(); ++i) {
    shape.window = windows_.of_layers[i];
    if (!cuda::gains_by_sharing(batch, shared, shape, ctas, &schedule)) break;
    least_windows_[part] = shape.window;
  }
  return true;
}

}  // namespace llmb
