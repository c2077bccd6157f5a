#include "planner/row_queue.h"

#include <algorithm>
#include <utility>

namespace llmb {

RowQueue::RowQueue(Schedule schedule, std::vector<PlannedRow> rows, int32_t num_slots)
    : schedule_(schedule),
      num_slots_(num_slots),
      rows_(std::move(rows)),
      order_(order_rows(schedule, rows_, num_slots)) {}

std::optional<int32_t> RowQueue::next() {
  if (next_ == order_.size()) return std::nullopt;
  const int32_t row = order_[next_++];
  last_adapter_ = rows_[row].adapter;
  return row;
}

void RowQueue::reorder(const std::function<int64_t(int32_t row)>& num_output_tokens) {
  std::vector<int32_t> left(order_.begin() + static_cast<std::ptrdiff_t>(next_), order_.end());
  std::sort(left.begin(), left.end());
  std::vector<PlannedRow> rows;
  rows.reserve(left.size());
  for (const int32_t row : left) {
    rows_[row].num_output_tokens = num_output_tokens(row);
    rows.push_back(rows_[row]);
  }
  order_ = order_rows(schedule_, rows, num_slots_);
  for (int32_t& row : order_) row = left[row];
  next_ = 0;
  if (last_adapter_ == kNoAdapter || (schedule_ != Schedule::kAuto && schedule_ != Schedule::kPrefix)) return;
  std::stable_partition(order_.begin(), order_.end(), [&](int32_t row) { return rows_[row].adapter == last_adapter_; });
}

}  // namespace llmb
