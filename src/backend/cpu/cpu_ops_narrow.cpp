// Rows of a step that what is sampled depends on, behind the last layer with keys and values of its own.
#include <algorithm>
#include <cstring>

#include "backend/cpu/cpu_ops.h"

namespace llmb {

// Ranks that have parts of layers or of positions, trees, adapters and an int4 cache look at all rows. Behind this ranks
// that share out rows all compute those that are left.
std::optional<int64_t> CpuOps::narrow_step() {
  const StepPlan& plan = *plan_;
  const bool is_divided = ranks_ != nullptr || slices_;
  if (is_divided || open_ || has_adapters() || !plan.parent_rows.empty() || !plan.hidden_rows.empty())
    return std::nullopt;
  if (!find_kept_rows(plan, &kept_)) return std::nullopt;
  kept_positions_.clear();
  for (const int32_t row : kept_.rows) kept_positions_.push_back(step_.positions[static_cast<size_t>(row)]);
  for (size_t i = 0; i < sample_rows_.size(); ++i) {
    const SampleRow& row = plan.sample_rows[i];
    sample_rows_[i] = kept_.place_of(plan.groups[static_cast<size_t>(row.group)].entry, row.token_row);
  }
  return static_cast<int64_t>(kept_.rows.size());
}

void CpuOps::keep_rows(Rows x) {
  float* to = static_cast<float*>(x.data);
  if (rows_ && rows_->are_divided()) {
    foreign_rows_.resize(kept_.rows.size() * static_cast<size_t>(x.width));
    rows_->gather(to, x.width, kept_.rows, foreign_rows_.data());
    std::copy(foreign_rows_.begin(), foreign_rows_.end(), to);
    return;
  }
  for (const int32_t row : kept_.rows) {
    std::memmove(to, static_cast<const float*>(x.data) + row * x.width, static_cast<size_t>(x.width) * sizeof(float));
    to += x.width;
  }
}

}  // namespace llmb
