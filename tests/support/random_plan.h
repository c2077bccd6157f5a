// Valid step plans with everything in them that a plan may have: entries that follow groups in flight, trees, several
// layer groups, groups of every mode, penalties that count unseen tokens.
#pragma once

#include <cstdint>

#include "core/resolve_step.h"
#include "core/step_plan.h"
#include "tests/support/test_rng.h"

namespace llmb::test {

inline constexpr int32_t kRandomPlanVocab = 7;  // few, so that drafts are often right and penalties often meet

// At most 6 entries of up to 70 rows. `in_flight` may be null.
StepPlan random_plan(TestRng& rng, const StepPlan* in_flight);

// Something that the groups of a plan could have given, now and then nothing.
GivenTokens random_given(TestRng& rng, const StepPlan& plan);

// Something that could have been drawn for its sample rows; now and then a row is not finite.
SampledRows random_samples(TestRng& rng, const StepPlan& plan);

}  // namespace llmb::test
