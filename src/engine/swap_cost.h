// Whether moving a preempted sequence's blocks to the host and back takes less time than computing its tokens again.
#pragma once

#include "backend/backend.h"
#include "core/step_cost.h"

namespace llmb {

// Tokens are computed again in steps of `num_rows`, which take what was learned. False where that, or the speed of
// copies, is not known.
bool swap_pays(const BackendInfo& backend, const StepCost& cost, int32_t num_rows);

}  // namespace llmb
