// Which rows of a step have which adapter, for every backend that computes them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "core/step_plan.h"
#include "model/ops.h"

namespace llmb {

// Used for one step after the other, so that steps allocate nothing.
class AdapterRows {
 public:
  // The rows of one kind that have adapters: those of ids()[i] are [start[i], start[i + 1]) of row_ids, in order.
  struct OfKind {
    std::vector<int32_t> row_ids, start;
  };

  void lay_out(const StepPlan& plan) {
    ids_.clear();
    for (const StepEntry& entry : plan.entries)
      if (entry.adapter >= 0) ids_.push_back(entry.adapter);
    if (ids_.empty()) return;
    std::sort(ids_.begin(), ids_.end());
    ids_.erase(std::unique(ids_.begin(), ids_.end()), ids_.end());
    index_of_entry_.clear();
    entry_of_token_.resize(static_cast<size_t>(plan.num_tokens()));
    for (int32_t e = 0; e < plan.num_entries(); ++e) {
      index_of_entry_.push_back(index_of(plan.entries[e].adapter));
      std::fill(entry_of_token_.begin() + plan.query_start[e], entry_of_token_.begin() + plan.query_start[e + 1], e);
    }
    const auto of_token = [&](int32_t row) { return index_of_entry_[entry_of_token_[row]]; };
    sort_rows(plan.num_tokens(), of_token, &rows_[0]);
    sort_rows(plan.num_samples(), [&](int32_t row) { return of_token(plan.sample_rows[row].token_row); }, &rows_[1]);
  }

  const std::vector<int32_t>& ids() const { return ids_; }  // of the step's adapters, in order
  const OfKind& of(RowKind kind) const { return rows_[kind == RowKind::kTokens ? 0 : 1]; }  // where there are ids

 private:
  int32_t index_of(int32_t id) const {
    return id < 0 ? -1 : static_cast<int32_t>(std::lower_bound(ids_.begin(), ids_.end(), id) - ids_.begin());
  }

  // By counting. index_of: a row's adapter, or -1.
  template <typename IndexOf>
  void sort_rows(int32_t num_rows, const IndexOf& index_of, OfKind* rows) const {
    auto& [row_ids, start] = *rows;
    start.assign(ids_.size() + 2, 0);
    for (int32_t row = 0; row < num_rows; ++row)
      if (const int32_t i = index_of(row); i >= 0) ++start[i + 2];
    for (size_t i = 2; i < start.size(); ++i) start[i] += start[i - 1];
    row_ids.resize(static_cast<size_t>(start.back()));
    for (int32_t row = 0; row < num_rows; ++row)
      if (const int32_t i = index_of(row); i >= 0) row_ids[start[i + 1]++] = row;
  }

  std::vector<int32_t> ids_;
  std::array<OfKind, 2> rows_;
  std::vector<int32_t> index_of_entry_, entry_of_token_;
};

}  // namespace llmb
