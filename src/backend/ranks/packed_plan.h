// Plans as bytes, between ranks of the same build.
#pragma once

#include <string>
#include <string_view>

#include "core/step_plan.h"

namespace llmb {

std::string pack_plan(const StepPlan& plan);
// REQUIRES: bytes of pack_plan()
void unpack_plan(std::string_view bytes, StepPlan* plan);

}  // namespace llmb
