// Who waits for sequences whose next token's mask depends on their last token.
#pragma once

#include <cstdint>
#include <optional>

#include "core/step_cost.h"

namespace llmb {

// Whether the run is faster where these alone sit out the plan ahead, so that the device never waits but they get every
// second step only, than where nothing is planned ahead, so that it waits for the host, host_ms, before each step.
// Nullopt: what steps cost is not known. cost: may be null. are_waiting: it is so at present.
std::optional<bool> waiting_alone_pays(const StepCost* cost, double host_ms, int32_t num_running,
                                       int32_t num_constrained, bool are_waiting);

}  // namespace llmb
