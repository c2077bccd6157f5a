// Which entries of a plan begin with the same KV blocks, found in their block tables. Pure.
#pragma once

#include <span>

#include "core/step_plan.h"

namespace llmb {

// Fills in shared_prefixes and shared_entries: every run of blocks with which two or more tables begin, at its longest.
// Time: that of sorting the tables by their first block, and of comparing the blocks that they share.
void find_shared_prefixes(StepPlan* plan);

// Those of a layer group.
std::span<const SharedPrefix> shared_prefixes(const StepPlan& plan, int32_t layer_group);

}  // namespace llmb
