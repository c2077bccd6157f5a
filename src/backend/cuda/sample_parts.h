// A step's sample rows, divided so that the tables of biases and penalties can have a fixed size. No device: plain
// data.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/step_plan.h"

namespace llmb {

// Sample rows begin … end - 1 and what of the plan's arrays their slices lie in. Views the plan.
struct SamplePart {
  int32_t begin = 0, end = 0;
  std::span<const TokenBias> bias;
  std::span<const TokenPenalty> penalty;
};

// All sample rows in order, in parts as large as possible of at most max_biases and max_penalties entries. One part
// where all entries fit, none where there are no rows. REQUIRES: each row's slices fit.
std::vector<SamplePart> split_samples(const StepPlan& plan, int64_t max_biases, int64_t max_penalties);

}  // namespace llmb
