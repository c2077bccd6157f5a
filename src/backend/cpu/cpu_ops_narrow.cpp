// Rows of a step that what is sampled depends on, behind the last layer with keys and values of its own.
#include <algorithm>
#include <cstring>

#include "backend/cpu/cpu_ops.h"

namespace llmb {

// Every entry keeps a row, so that shared prefixes name the entries that they did. Ranks that share out work, trees,
// adapters and an int4 cache look at all rows.
std::optional<int64_t> CpuOps::narrow_step() {
  const StepPlan& plan = *plan_;
  const bool is_shared_out = ranks_ != nullptr || rows_ || slices_;
  if (is_shared_out || open_ || has_adapters() || !plan.parent_rows.empty() || !plan.hidden_rows.empty())
    return std::nullopt;
  std::vector<int32_t> first(plan.query_start.begin() + 1, plan.query_start.end());
  for (int32_t& row : first) --row;
  for (const SampleRow& row : plan.sample_rows) {
    int32_t& of_entry = first[static_cast<size_t>(plan.groups[static_cast<size_t>(row.group)].entry)];
    of_entry = std::min(of_entry, row.token_row);
  }
  std::vector<int32_t> places(static_cast<size_t>(plan.num_tokens()));
  kept_start_ = {0};
  kept_positions_.clear();
  for (int32_t e = 0; e < plan.num_entries(); ++e) {
    for (int32_t row = first[static_cast<size_t>(e)]; row < plan.query_start[e + 1]; ++row) {
      places[static_cast<size_t>(row)] = static_cast<int32_t>(kept_rows_.size());
      kept_rows_.push_back(row);
      kept_positions_.push_back(step_.positions[static_cast<size_t>(row)]);
    }
    kept_start_.push_back(static_cast<int32_t>(kept_rows_.size()));
  }
  if (static_cast<int32_t>(kept_rows_.size()) == plan.num_tokens()) {
    kept_rows_.clear();
    return std::nullopt;
  }
  for (int32_t& row : sample_rows_) row = places[static_cast<size_t>(row)];
  return static_cast<int64_t>(kept_rows_.size());
}

void CpuOps::keep_rows(Rows x) {
  float* to = static_cast<float*>(x.data);
  for (const int32_t row : kept_rows_) {
    std::memmove(to, static_cast<const float*>(x.data) + row * x.width, static_cast<size_t>(x.width) * sizeof(float));
    to += x.width;
  }
}

}  // namespace llmb
