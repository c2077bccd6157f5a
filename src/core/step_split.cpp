#include "core/step_split.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace llmb {

namespace {

constexpr int32_t kPromptCut = 64;  // rows of a prompt between borders: what attention takes at a time

// The cost of the rows before a border, as products and as attention.
struct Work {
  int64_t products = 0, attention = 0;
};

class Borders {
 public:
  Borders(const StepPlan& plan, const RowCost& cost) : plan_(plan), cost_(cost) {
    forbid_reads_ahead();
    find_shared();
    find_first_samples();
  }

  std::optional<StepSplit> best(const SplitLimits& limits) {
    const Work all = work_of(plan_.num_tokens());
    for (int32_t e = 0; e < plan_.num_entries(); ++e) {
      const int32_t begin = plan_.query_start[e];
      if (e > 0 && !reads_ahead_[static_cast<size_t>(e)]) consider({begin, e}, all, limits);
      // Inside, the entry is in both parts, so none before it may read what it writes.
      const bool is_cut = limits.cuts_prompts && !plan_.entries[e].is_indivisible && !reads_ahead_[static_cast<size_t>(e)];
      const int32_t end = std::min(first_sample_[static_cast<size_t>(e)], plan_.query_start[e + 1] - 1);
      for (int32_t row = begin + kPromptCut; is_cut && row <= end; row += kPromptCut) consider({row, e}, all, limits);
    }
    return best_;
  }

 private:
  // A table may name a block that a later entry writes in this step: the border must not come between the two. Entry e is
  // marked where one before it reads what e or one behind it writes.
  void forbid_reads_ahead() {
    const auto num_entries = static_cast<size_t>(plan_.num_entries());
    reads_ahead_.assign(num_entries, false);
    const BlockId max_block = plan_.block_ids.empty() ? 0 : *std::max_element(plan_.block_ids.begin(), plan_.block_ids.end());
    std::vector<int32_t> writer(static_cast<size_t>(max_block) + 1, -1);
    const auto for_each_block = [&](int32_t e, int64_t begin, int64_t end, const auto& visit) {
      for (int32_t g = 0; g < plan_.num_layer_groups; ++g) {
        const size_t table = static_cast<size_t>(e) * plan_.num_layer_groups + g;
        const int64_t size = plan_.block_start[table + 1] - plan_.block_start[table];
        for (int64_t i = begin; i < std::min(end, size); ++i) visit(plan_.block_ids[plan_.block_start[table] + i]);
      }
    };
    for (int32_t e = 0; e < plan_.num_entries(); ++e)
      for_each_block(e, plan_.entries[e].base / plan_.block_size, ceil_div(plan_.max_context_len(e), plan_.block_size),
                     [&](BlockId block) { writer[static_cast<size_t>(block)] = e; });
    std::vector<int32_t> last_read(num_entries, 0);  // the last entry from which the entry reads
    for (int32_t e = 0; e < plan_.num_entries(); ++e)
      for_each_block(e, 0, INT32_MAX, [&](BlockId block) {
        last_read[static_cast<size_t>(e)] = std::max(last_read[static_cast<size_t>(e)], writer[static_cast<size_t>(block)]);
      });
    int32_t reach = 0;
    for (size_t e = 0; e < num_entries; ++e) {
      reads_ahead_[e] = reach >= static_cast<int32_t>(e) && e > 0;
      reach = std::max(reach, last_read[e]);
    }
  }

  // Positions that rows on both sides of a border before entry e share: of the longest such prefix.
  void find_shared() {
    shared_.assign(static_cast<size_t>(plan_.num_entries()), 0);
    for (const SharedPrefix& prefix : plan_.shared_prefixes) {
      const auto entries = std::minmax_element(plan_.shared_entries.begin() + prefix.entry_begin,
                                               plan_.shared_entries.begin() + prefix.entry_end);
      for (int32_t e = *entries.first + 1; e <= *entries.second; ++e)
        shared_[static_cast<size_t>(e)] =
            std::max(shared_[static_cast<size_t>(e)], int64_t{prefix.num_blocks} * plan_.block_size);
    }
  }

  void find_first_samples() {
    first_sample_.assign(plan_.query_start.begin() + 1, plan_.query_start.end());
    for (const SampleGroup& group : plan_.groups) {
      int32_t& first = first_sample_[static_cast<size_t>(group.entry)];
      first = std::min(first, plan_.sample_rows[static_cast<size_t>(group.row_begin)].token_row);
    }
  }

  // Borders are asked for in order of rows.
  Work work_of(int32_t end_row) {
    if (end_row < row_) row_ = entry_ = 0, before_ = {};
    for (; row_ < end_row; ++row_) {
      while (row_ >= plan_.query_start[entry_ + 1]) ++entry_;
      const int64_t position = plan_.entries[entry_].max_base() + (row_ - plan_.query_start[entry_]);
      before_.products += cost_.of_row;
      before_.attention += cost_.of_position * (position + 1);
    }
    return before_;
  }

  void consider(const StepSplit& split, const Work& all, const SplitLimits& limits) {
    if (limits.only_row > 0 && split.row != limits.only_row) return;
    const Work first = work_of(split.row), second = {all.products - first.products, all.attention - first.attention};
    const bool is_inside = split.row > plan_.query_start[split.entry];
    const int64_t again = is_inside ? 0 : shared_[static_cast<size_t>(split.entry)] * cost_.of_position;
    const int64_t cost = std::max(first.products, second.attention) + std::max(second.products, first.attention) + again;
    const int64_t uneven = std::abs(first.products + first.attention - second.products - second.attention);
    if (best_ && (cost > best_cost_ || (cost == best_cost_ && uneven >= best_uneven_))) return;
    best_ = split, best_cost_ = cost, best_uneven_ = uneven;
  }

  const StepPlan& plan_;
  const RowCost cost_;
  std::vector<bool> reads_ahead_;      // [num_entries]
  std::vector<int64_t> shared_;        // [num_entries]
  std::vector<int32_t> first_sample_;  // [num_entries]  rows; the entry's end where none is sampled
  int32_t row_ = 0, entry_ = 0;
  Work before_;  // of rows before row_
  std::optional<StepSplit> best_;
  int64_t best_cost_ = 0, best_uneven_ = 0;
};

}  // namespace

std::optional<StepSplit> split_step(const StepPlan& plan, const RowCost& cost, const SplitLimits& limits) {
  if (plan.num_tokens() < 2 || !plan.hidden_rows.empty() || plan.is_mtp) return std::nullopt;
  return Borders(plan, cost).best(limits);
}

}  // namespace llmb
