#include "core/kept_rows.h"

#include <algorithm>

namespace llmb {

bool find_kept_rows(const StepPlan& plan, KeptRows* kept) {
  std::vector<int32_t> first(plan.query_start.begin() + 1, plan.query_start.end());
  for (int32_t& row : first) --row;
  for (const SampleRow& row : plan.sample_rows) {
    int32_t& of_entry = first[static_cast<size_t>(plan.groups[static_cast<size_t>(row.group)].entry)];
    of_entry = std::min(of_entry, row.token_row);
  }
  kept->rows.clear();
  kept->start = {0};
  for (size_t e = 0; e < first.size(); ++e) {
    for (int32_t row = first[e]; row < plan.query_start[e + 1]; ++row) kept->rows.push_back(row);
    kept->start.push_back(static_cast<int32_t>(kept->rows.size()));
  }
  if (static_cast<int32_t>(kept->rows.size()) < plan.num_tokens()) return true;
  kept->rows.clear();
  kept->start.clear();
  return false;
}

}  // namespace llmb
