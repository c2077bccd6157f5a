// The last stage of a pipeline tells all others what steps give.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>

#include "base/collectives.h"
#include "core/resolve_step.h"
#include "core/step_plan.h"

namespace llmb {

// Steps count from 0 since the backend was loaded. Each rank takes what each step gave, in order, or gives it.
class StepOutputs {
 public:
  // root: the rank that gives. The channel outlives this.
  StepOutputs(Collectives& channel, int root) : channel_(channel), root_(root) {}

  // REQUIRES: this is the root
  void give(const StepOutput& output, const GivenTokens& given);
  // Until all steps before `num_steps` have given. From any thread. Throws RankError.
  void take(int64_t num_steps);

  // REQUIRES: the step was taken, and at most one behind it
  StepOutput& output(int64_t step) { return outputs_[static_cast<size_t>(step % kMaxPlansInFlight)]; }
  const GivenTokens& given(int64_t step) const { return given_[static_cast<size_t>(step % kMaxPlansInFlight)]; }

 private:
  Collectives& channel_;
  const int root_;
  std::mutex mutex_;  // of taking
  int64_t num_taken_ = 0;
  std::string bytes_;
  std::array<StepOutput, kMaxPlansInFlight> outputs_;
  std::array<GivenTokens, kMaxPlansInFlight> given_;
};

}  // namespace llmb
