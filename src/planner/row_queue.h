// Rows in the order of the plan, which follows what is learned about the lengths of their answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "planner/row_order.h"

namespace llmb {

// Not thread-safe. Each row is given once.
class RowQueue {
 public:
  RowQueue(Schedule schedule, std::vector<PlannedRow> rows, int32_t num_slots);

  // A place in `rows`; nullopt: all were given.
  std::optional<int32_t> next();
  // Puts those that are left in the order of the plan, by the output tokens that are expected by now. As order_rows(), but
  // in a trie's order first the rows of the adapter that the last row has: it is read once.
  void reorder(const std::function<int64_t(int32_t row)>& num_output_tokens);

 private:
  const Schedule schedule_;
  const int32_t num_slots_;
  std::vector<PlannedRow> rows_;
  std::vector<int32_t> order_;  // places in rows_
  size_t next_ = 0;             // in order_
  int32_t last_adapter_ = kNoAdapter;
};

}  // namespace llmb
