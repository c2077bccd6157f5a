// How many drafts the entries of a plan end with.
#pragma once

#include <cstdint>
#include <vector>

#include "core/step_plan.h"

namespace llmb {

// num_drafts: [num_entries]  rows at the end of each one that are guesses
inline void count_drafts(const StepPlan& plan, std::vector<int32_t>* num_drafts) {
  num_drafts->assign(plan.entries.size(), 0);
  for (const SampleGroup& group : plan.groups)
    if (group.mode == SampleMode::kVerify) (*num_drafts)[static_cast<size_t>(group.entry)] = group.num_rows() - 1;
}

}  // namespace llmb
