// Rows of a step that what is sampled depends on where no layer that follows has keys and values of its own
// (Ops::narrow_step). Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "core/step_plan.h"

namespace llmb {

struct KeptRows {
  std::vector<int32_t> rows;   // [num_kept]  of the plan, ascending
  std::vector<int32_t> start;  // [num_entries + 1]  where those of each entry begin

  // Where a row that is kept stands among them.
  int32_t place_of(int32_t entry, int32_t row) const {
    const int32_t begin = start[static_cast<size_t>(entry)];
    return begin + row - rows[static_cast<size_t>(begin)];
  }
};

// Each entry's last row, so that none is without rows, and all from its first sampled one on. Whether some row is not
// kept; else `kept` is empty.
bool find_kept_rows(const StepPlan& plan, KeptRows* kept);

}  // namespace llmb
