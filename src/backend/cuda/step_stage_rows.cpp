// Where a plan's rows stand: in their entries, in block tables, and as attention's sequences, in one part or two.
#include <algorithm>

#include "backend/cuda/step_stage.h"
#include "base/check.h"

namespace llmb {

void StepStage::place_rows(const StepPlan& plan) {
  rows_.clear();
  has_tree_ = false;
  for (int32_t e = 0; e < plan.num_entries(); ++e) {
    const int32_t begin = plan.query_start[e], end = plan.query_start[e + 1];
    for (int32_t row = begin; row < end; ++row) {
      const bool has_parent = !plan.parent_rows.empty() && row > begin;
      const int32_t depth = has_parent ? rows_[plan.parent_rows[row]].depth + 1 : row - begin;
      rows_.push_back({e, row - begin, depth});
      has_tree_ |= !rows_.back().is_in_place();
    }
  }
}

// A block's ids in all groups stand together, so that a table has one place for all layers, whatever the step.
void StepStage::place_tables(const StepPlan& plan) {
  const int32_t num_groups = plan.num_layer_groups;
  table_start_ = plan.block_start, block_ids_ = plan.block_ids;
  if (num_groups == 1) return;
  joined_start_.clear();
  joined_ids_.clear();
  for (int32_t e = 0; e < plan.num_entries(); ++e) {
    joined_start_.push_back(static_cast<int32_t>(joined_ids_.size()) / num_groups);
    const int64_t num_blocks = plan.hidden_rows.empty() ? ceil_div(plan.max_context_len(e), plan.block_size) : 0;
    for (int64_t i = 0; i < num_blocks; ++i)
      for (int32_t g = 0; g < num_groups; ++g)
        joined_ids_.push_back(plan.block_ids[plan.block_start[e * num_groups + g] + i]);
  }
  table_start_ = joined_start_, block_ids_ = joined_ids_;
}

// An entry is a sequence of attention. So is each row of a tree that lies behind its place, by itself: it sees a path
// of its own (kernels/cuda/paged_attention.h). They are the entry's last rows.
void StepStage::add_sequences(const StepPlan& plan, const StepSplit& second) {
  query_start_.assign(1, 0);
  context_len_.clear();
  block_start_.clear();
  second_seq_ = 0;
  const auto add = [&](int32_t e, int32_t end, int32_t last_depth) {
    query_start_.push_back(end);
    context_len_.push_back(plan.entries[e].max_base() + last_depth + 1);
    block_start_.push_back(table_start_[e]);
  };
  for (int32_t e = 0; e < plan.num_entries(); ++e) {
    if (second.row > 0 && e == second.entry) {
      if (second.row > plan.query_start[e]) add(e, second.row, rows_[second.row - 1].depth);  // a prompt in both parts
      second_seq_ = static_cast<int32_t>(context_len_.size());
    }
    int32_t end = plan.query_start[e + 1];
    if (has_tree_)
      while (!rows_[end - 1].is_in_place()) --end;
    add(e, end, rows_[end - 1].depth);
    for (int32_t row = end; row < plan.query_start[e + 1]; ++row) add(e, row + 1, rows_[row].depth);
  }
}

// The entries as far as they have rows that this rank computes.
void StepStage::add_own_sequences(const StepPlan& plan, const Range& own) {
  LLMB_CHECK(!has_tree_);
  query_start_.assign(1, static_cast<int32_t>(own.begin));
  context_len_.clear();
  block_start_.clear();
  for_own_entries(plan, own, [&](int32_t e, int32_t, int32_t end) {
    query_start_.push_back(end);
    context_len_.push_back(plan.entries[e].max_base() + end - plan.query_start[e]);
    block_start_.push_back(table_start_[e]);
  });
}

Range StepStage::share_out(const StepPlan& plan, std::span<const int64_t> row_bounds, int rank) {
  row_bounds_.assign(row_bounds.begin(), row_bounds.end());
  sampled_ = part_samples(plan.sample_rows, row_bounds);
  return {row_bounds_[static_cast<size_t>(rank)], row_bounds_[static_cast<size_t>(rank) + 1]};
}

StepKind StepStage::kind_of(const StepShape& shape) const {
  StepKind kind{.has_tree = has_tree_};
  for (int part = 0; part < shape.num_lists(); ++part) {
    for (size_t i = 0; i < kinds_.size(); ++i) {
      if (is_expanded(i)) continue;
      const cuda::AttentionSchedule& schedule = schedules_[part][i];
      kind.is_tall |= std::any_of(schedule.units.begin(), schedule.units.end(), [](const auto& unit) { return unit.wgmma; });
    }
    const cuda::SharedAttentionSchedule& shared = shared_schedules_[part];
    const bool is_part = part == 0 || shape.is_split();
    if (!is_part || !may_share() || shared.items.empty()) continue;
    kind.sharing = shared.uses_wgmma ? Sharing::kWgmma : Sharing::kMma;
    kind.least_window = std::max(kind.least_window, least_windows_[part]);
  }
  return kind;
}

int32_t StepStage::num_ctas(size_t kind, bool is_split) const {
  if (!is_split) return kinds_[kind].num_ctas;
  return limits_.part_sms * cuda::attention_tiling(kinds_[kind].shape).ctas_per_sm;
}

}  // namespace llmb
