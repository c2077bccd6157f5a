// Writes sequences into a StepPlan.
#pragma once

#include <cstdint>

#include "core/step_plan.h"
#include "scheduler/sequence.h"

namespace llmb {

// Appends the next `num_tokens` pending tokens of the sequence as an entry; with the last of them also the group that
// samples behind it. REQUIRES: 1 <= num_tokens <= num_pending_tokens(); its blocks hold them.
void append_to_plan(const Sequence& sequence, int32_t num_tokens, StepPlan* plan);

}  // namespace llmb
