// Where a step's rows are divided into two parts that go through the layers side by side: one part's attention runs beside
// the other's products (NanoFlow, Zhu et al. 2024, arXiv:2408.12757). Pure.
//
// 1. Each part has at least one row. The second begins with an entry, or within the rows of a prompt that nobody samples;
//    so rows that verify drafts stay together.
// 2. No row of the first part reads keys and values that the second writes.
// 3. Of the borders that are left it is the one behind which the layers take the least time by what rows cost: pieces of
//    prefixes that rows of both parts share count as read twice. Among equals, parts are as even as may be.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>

#include "core/row_parts.h"
#include "core/step_plan.h"

namespace llmb {

// The first row of the second part, and the entry that it is of.
struct StepSplit {
  int32_t row = 0, entry = 0;

  auto operator<=>(const StepSplit&) const = default;
};

struct SplitLimits {
  bool cuts_prompts = true;  // not where entries have recurrent states
  // > 0: only with this row, or with none (a recorded step, whose padding comes last)
  int32_t only_row = 0;
};

// nullopt: there is no such border.
std::optional<StepSplit> split_step(const StepPlan& plan, const RowCost& cost, const SplitLimits& limits);

}  // namespace llmb
