// How many plans a backend holds at most.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/step_plan.h"

namespace llmb {

// Stages of a pipeline work at a time on as many plans, none of which has a sequence of another one: so none follows
// another (StepEntry::follows). With more stages than this some are idle.
inline constexpr int32_t kMaxAlternatingPlans = 16;

// Plans that a backend of so many stages holds.
constexpr int32_t plans_in_flight_of(int32_t num_stages) {
  return std::clamp(num_stages, kMaxPlansInFlight, kMaxAlternatingPlans);
}

}  // namespace llmb
